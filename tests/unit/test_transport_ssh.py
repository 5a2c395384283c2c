"""The SSH transport against a server in this process: what the lab's sshds do not do."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import asyncssh
import pytest

from fleet.errors import ConnectionDropped, HostKeyChanged, NodeError, NodeRefused, NodeUnreachable, SignInFailed
from fleet.model import Address, QuestionKind
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTarget, SshTransport


class Server(asyncssh.SSHServer):
    """Lets in by the means that a test names."""

    keys: tuple[asyncssh.SSHKey, ...] = ()
    password = ""
    code = ""
    offered = 0

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return bool(self.keys)

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        type(self).offered += 1
        return key in self.keys

    def kbdint_auth_supported(self) -> bool:
        return bool(self.password)

    def get_kbdint_challenge(self, username, lang, submethods):
        prompts = [("Password: ", False)] + ([("One-time code: ", True)] if self.code else [])
        return "", "", "", prompts

    def validate_kbdint_response(self, username, responses) -> bool:
        return list(responses) == [self.password] + ([self.code] if self.code else [])


async def run_sh(process: asyncssh.SSHServerProcess) -> None:
    """What an sshd does with a command, with /bin/sh as the login shell."""
    child = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", process.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE)
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    process.exit(await child.wait())
    await process.wait_closed()


@pytest.fixture
async def serve(tmp_path):
    """Starts servers and connects to them; what was started is ended."""
    async with AsyncExitStack() as stack:
        async def start(*, process=run_sh, host_keys=None, known=True, **fields):
            kind = type("ThisServer", (Server,), fields)
            host_keys = host_keys or [asyncssh.generate_private_key("ssh-ed25519")]
            server = await asyncssh.listen("127.0.0.1", 0, server_factory=kind, server_host_keys=host_keys,
                                           process_factory=process, encoding=None)
            stack.callback(server.close)
            port = server.get_port()
            known_hosts = tmp_path / "known_hosts"
            if known:
                key = host_keys[0] if isinstance(host_keys[0], asyncssh.SSHKey) else host_keys[0][0]
                known_hosts.write_text(f"[127.0.0.1]:{port} " + key.export_public_key().decode())

            def transport(*, ask=nobody, accept_new=False, **changes) -> SshTransport:
                target = SshTarget(**({"name": "node", "addresses": (Address("127.0.0.1", port),), "user": "me",
                                       "identity_files": (str(tmp_path / "id"),), "agent": False,
                                       "known_hosts": str(known_hosts), "connect_timeout": 5.0} | changes))
                made = SshTransport(target, ask=ask, accept_new=accept_new)
                stack.push_async_callback(made.close)
                return made
            transport.server, transport.port = kind, port
            return transport
        yield start


@pytest.fixture
def key(tmp_path) -> asyncssh.SSHKey:
    made = asyncssh.generate_private_key("ssh-ed25519")
    made.write_private_key(str(tmp_path / "id"), format_name="openssh")
    return made.convert_to_public()


async def test_a_key_signs_in_and_scripts_run(serve, key):
    node = (await serve(keys=(key,)))()
    connected = await node.connect()
    assert connected.address.host == "127.0.0.1" and connected.fingerprint.startswith("SHA256:")
    done = await node.run("cat; echo \"$1\"; exit 4", ["a'b"], stdin=b"data ")
    assert (done.status, done.text) == (4, "data a'b\n")


async def test_a_password_and_a_code_are_asked_in_the_servers_own_words(serve):
    asked = []

    async def ask(kind: QuestionKind, node: str, text: str, detail: str) -> str:
        asked.append((kind, text, detail))
        return "654321" if "code" in text else "secret"

    start = await serve(password="secret", code="654321")
    node = start(ask=ask)
    await node.connect()
    assert asked == [(QuestionKind.PASSWORD, f"Password of me@127.0.0.1:{start.port}?", "Password:"),
                     (QuestionKind.PASSWORD, f"me@127.0.0.1:{start.port} asks: One-time code:", "")]
    await node.close()
    await node.connect()
    assert [text for _, text, _ in asked[2:]] == [f"me@127.0.0.1:{start.port} asks: One-time code:"]


async def test_nobody_there_is_said_with_what_would_help(serve):
    with pytest.raises(SignInFailed, match="ssh-copy-id") as caught:
        await (await serve(password="secret"))().connect()
    assert "it offers keyboard-interactive" in caught.value.what
    assert "no key, since none was found" in caught.value.what


async def test_a_password_is_in_no_error_and_no_repr(serve):
    async def ask(*_: object) -> str:
        return "hunter2-wrong"

    node = (await serve(password="secret"))(ask=ask)
    with pytest.raises(SignInFailed) as caught:
        await node.connect()
    assert "hunter2" not in f"{caught.value!r} {caught.value} {node!r} {vars(node)!r}"


@pytest.mark.skipif(not shutil.which("ssh-agent"), reason="ssh-agent is not installed")
async def test_the_agents_keys_are_tried_after_the_named_ones(serve, key, tmp_path):
    other = asyncssh.generate_private_key("ssh-ed25519")
    other.write_private_key(str(tmp_path / "in_agent"), format_name="openssh")
    (tmp_path / "in_agent").chmod(0o600)
    socket = str(tmp_path / "agent")
    agent = await asyncio.create_subprocess_exec("ssh-agent", "-D", "-a", socket, stdout=asyncio.subprocess.PIPE)
    try:
        assert agent.stdout and await agent.stdout.readline()
        add = await asyncio.create_subprocess_exec("ssh-add", "-q", str(tmp_path / "in_agent"),
                                                   env={"SSH_AUTH_SOCK": socket})
        assert await add.wait() == 0
        config = tmp_path / "config"
        config.write_text(f"Host node\n  IdentityAgent {socket}\n")
        start = await serve(keys=(other.convert_to_public(),))
        await start(agent=True, ssh_config_files=(str(config),)).connect()
        config.write_text(f"Host node\n  IdentityAgent {socket}\n  IdentitiesOnly yes\n")
        with pytest.raises(SignInFailed):
            await start(agent=True, ssh_config_files=(str(config),)).connect()
    finally:
        agent.terminate()
        await agent.wait()


async def test_an_agent_that_says_nothing_does_not_hold_the_sign_in_up(serve, key, tmp_path, monkeypatch):
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr("fleet.nodes.ssh_keys.AGENT_TIMEOUT", 0.2)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    async with await asyncio.start_unix_server(silent, tmp_path / "agent"):
        await (await serve(keys=(key,)))(agent=True).connect()


async def test_a_known_key_is_asked_for_though_the_server_prefers_another(serve, key, tmp_path):
    ed25519, rsa = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-rsa")
    start = await serve(keys=(key,), host_keys=[rsa, ed25519])
    assert (await start().connect()).fingerprint == rsa.get_fingerprint()
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{start.port} {ed25519.export_public_key().decode()}")
    assert (await start().connect()).fingerprint == ed25519.get_fingerprint()


async def test_a_key_of_another_kind_in_place_of_the_known_one_is_a_change(serve, key, tmp_path):
    start = await serve(keys=(key,))
    rsa = asyncssh.generate_private_key("ssh-rsa").export_public_key().decode()
    (tmp_path / "known_hosts").write_text(f"# first\n[127.0.0.1]:{start.port} {rsa}")
    with pytest.raises(HostKeyChanged, match="known_hosts line 2"):
        await start(accept_new=True).connect()


async def test_a_certificate_of_a_known_authority_is_enough(serve, key, tmp_path):
    authority, host = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    certificate = authority.generate_host_certificate(host, "node", principals=["127.0.0.1"])
    start = await serve(keys=(key,), host_keys=[(host, certificate)], known=False)
    (tmp_path / "known_hosts").write_text(f"@cert-authority * {authority.export_public_key().decode()}")
    await start().connect()
    other = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "known_hosts").write_text(f"@cert-authority * {other.export_public_key().decode()}")
    with pytest.raises(HostKeyChanged, match="certificate"):
        await start().connect()


async def test_a_node_is_known_by_any_of_its_names(serve, key, tmp_path):
    host = asyncssh.generate_private_key("ssh-ed25519")
    start = await serve(keys=(key,), host_keys=[host])
    (tmp_path / "known_hosts").write_text(f"node.local {host.export_public_key().decode()}")
    here = Address("127.0.0.1", start.port)
    await start(addresses=(here, Address("node.local", 22))).connect()
    with pytest.raises(NodeError):
        await start(addresses=(here,)).connect()


async def test_a_server_that_closes_without_a_status_is_a_dropped_connection(serve, key):
    async def close_at_once(process: asyncssh.SSHServerProcess) -> None:
        process.stdout.write(b"\n--quarterdeck-begin-- 7\nhalf")
        process.close()

    with pytest.raises(ConnectionDropped):
        await (await serve(keys=(key,), process=close_at_once))().connect()


async def test_an_account_that_may_run_nothing_is_an_unusable_shell(serve, key):
    async def refuse(process: asyncssh.SSHServerProcess) -> None:
        process.stdout.write(b"This account is \x1b[1mnot\x1b[0m available.\n")
        process.exit(1)

    with pytest.raises(NodeError, match="it said: This account is") as caught:
        await (await serve(keys=(key,), process=refuse))().connect()
    assert caught.value.code == "shell" and "\x1b" not in str(caught.value)


async def test_output_without_end_is_bounded(serve, key):
    node = (await serve(keys=(key,)))()
    await node.connect()
    done = await node.run("head -c 3000000 /dev/zero; head -c 300000 /dev/zero >&2", limit=1000)
    assert (len(done.stdout), done.truncated, len(done.stderr)) == (1000, True, 64 * 1024)


async def test_lines_that_nobody_takes_make_the_node_wait(serve, key):
    node = (await serve(keys=(key,)))()
    await node.connect()
    lines = node.lines("i=0; while [ $i -lt 200000 ]; do echo line $i; i=$((i+1)); done", limit=100)
    assert await anext(lines) == "line 0"
    count = 1
    async for line in lines:
        assert line == f"line {count}"
        count += 1
    assert count > 1000


async def test_a_refused_port_and_an_unknown_name_are_told_apart(serve, key):
    start = await serve(keys=(key,))
    with pytest.raises(NodeRefused, match="refuses connections"):
        await start(addresses=(Address("127.0.0.1", 1),)).connect()
    with pytest.raises(NodeUnreachable) as caught:
        await start(addresses=(Address("no-such-host.invalid", 22),)).connect()
    assert caught.value.code == "dns"
    with pytest.raises(NodeUnreachable, match="No address"):
        await start(addresses=()).connect()
    # the second address answers
    await start(addresses=(Address("127.0.0.1", 1), Address("127.0.0.1", start.port))).connect()


async def test_an_unwritable_known_hosts_does_not_keep_anybody_out(serve, key, tmp_path, caplog):
    start = await serve(keys=(key,), known=False)
    (tmp_path / "a_file").write_text("")
    await start(accept_new=True, known_hosts=str(tmp_path / "a_file" / "known_hosts")).connect()
    assert "cannot be written" in caplog.text


async def test_closing_twice_and_using_what_is_closed_is_safe(serve, key):
    node = (await serve(keys=(key,)))()
    await node.connect()
    await node.close()
    await node.close()
    with pytest.raises(ConnectionDropped):
        await node.run(":")
    with pytest.raises(ConnectionDropped):
        await node.open_connection("127.0.0.1", 1)


def test_the_key_files_of_a_home_are_looked_for_when_none_is_named():
    from fleet.nodes.ssh_settings import Settings

    target = SshTarget("node", (Address("127.0.0.1"),))
    assert str(Path("~/.ssh/id_ed25519").expanduser()) in Settings(target).identity_files(target)
    assert os.path.isabs(Settings(target).identity_files(target)[0])
