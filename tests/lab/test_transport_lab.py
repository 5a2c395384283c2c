"""The SSH transport against real hosts, each odd in its own way."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from fleet.errors import (
    CommandTimeout,
    ConnectionDropped,
    FleetError,
    HostKeyChanged,
    HostKeyUnknown,
    NodeError,
    NodeRefused,
    NodeUnreachable,
    PortClosed,
    PortTaken,
    SignInFailed,
)
from fleet.model import Address, QuestionKind
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTransport
from fleet.nodes.streams import connect_tcp

GOOD = ("plain", "fish", "csh", "busybox", "noisy", "nopython", "nollama", "nomdns", "nosftp", "noforward", "port2222",
        "readonlyhome", "fulldisk", "slow", "lossy")


class Person:
    """Somebody who answers questions, and remembers them."""

    def __init__(self, **answers: str | None) -> None:
        self.answers = {kind.name.lower(): None for kind in QuestionKind} | answers
        self.asked: list[tuple[QuestionKind, str, str, str]] = []

    async def __call__(self, kind: QuestionKind, node: str, text: str, detail: str) -> str | None:
        self.asked.append((kind, node, text, detail))
        return self.answers[kind.name.lower()]


@pytest.fixture
async def connect(lab):
    """Connects to nodes by name; all are let go of at the end."""
    async with AsyncExitStack() as stack:
        async def made(name: str, /, *, ask=nobody, accept_new=False, **changes) -> SshTransport:
            transport = SshTransport(lab.target(name, **changes), ask=ask, accept_new=accept_new)
            stack.push_async_callback(transport.close)
            await transport.connect()
            return transport
        yield made


async def still_runs(transport: SshTransport, pid: str) -> bool:
    return (await transport.run('kill -0 "$1"', [pid])).status == 0


async def until_ended(transport: SshTransport, pid: str) -> None:
    script = 'while kill -0 "$1" 2>/dev/null; do sleep 0.05; done'
    assert (await transport.run(script, [pid], timeout=20)).status == 0


@pytest.mark.parametrize("trait", GOOD)
async def test_a_node_that_is_odd_but_usable_runs_scripts_all_the_same(lab, connect, trait):
    node = await connect(lab.one(trait), connect_timeout=30.0)
    data = b"\0it's \"data\"\n" * 1000
    done = await node.run("cat; printf '%s' \"$1\"; echo; hostname; exit 7", ["$x 'y' \\ ü"], stdin=data, timeout=30)
    assert done.status == 7
    assert done.stdout == data + "$x 'y' \\ ü\n".encode() + lab.nodes[node.name]["hostname"].encode() + b"\n"


async def test_what_rc_files_print_is_no_part_of_the_output_nor_of_the_lines(lab, connect):
    node = await connect(lab.one("noisy"))
    done = await node.run("echo hello; echo bad >&2")
    assert done.text == "hello\n" and done.error_text == "bad\n"
    async with aclosing(node.lines("echo one; echo two; sleep 1000")) as lines:
        assert [await anext(lines), await anext(lines)] == ["one", "two"]


@pytest.mark.parametrize(("trait", "kind", "words"), [
    ("dead", NodeUnreachable, ("does not answer", "no route to it")),
    ("drop", NodeUnreachable, ("does not answer", "no answer in 3 s")),
    ("nosshd", NodeRefused, ("refuses connections to its SSH port",)),
    ("password", SignInFailed, ("it offers password", "ssh-copy-id")),
    ("passphrase", SignInFailed, ("id_locked", "ssh-add")),
    ("newkey", HostKeyUnknown, ("never seen before", "SHA256:", "--accept-new")),
    ("changedkey", HostKeyChanged, ("known_hosts line", "ssh-keygen -f", "-R 10.77.0.")),
])
async def test_each_difficult_node_has_its_own_error_with_its_own_sentence(lab, connect, trait, kind, words):
    name = lab.one(trait)
    timeout = 3.0 if trait == "drop" else 8.0
    with pytest.raises(NodeError) as caught:
        await connect(name, connect_timeout=timeout)
    assert type(caught.value) is kind
    assert name in caught.value.what and caught.value.remedy
    for word in words:
        assert word in str(caught.value)


async def test_dead_and_silent_nodes_delay_nobody_else(lab):
    finished: list[str] = []

    async def one(name: str) -> None:
        transport = SshTransport(lab.target(name, connect_timeout=5.0), ask=nobody, accept_new=False)
        try:
            await transport.connect()
            finished.append(name)
        except NodeError:
            finished.append(name)
        finally:
            await transport.close()

    late = [lab.one("dead"), lab.one("drop")]
    quick = [name for name, node in lab.nodes.items()
             if not {"dead", "drop", "slow", "lossy"} & set(node["traits"])]
    await asyncio.gather(*map(one, [*late, *quick]))
    assert set(finished[:len(quick)]) == set(quick)


async def test_a_dead_first_address_does_not_cost_its_timeout(lab, connect):
    good, bad = lab.plain[0], lab.one("drop")
    addresses = (Address(lab.address(bad)), Address(lab.address(good)))
    events: list[str] = []

    async def timeout_of_the_bad_one() -> None:
        with pytest.raises(NodeError):
            await connect(bad, connect_timeout=5.0)
        events.append("bad")

    async def both() -> None:
        transport = SshTransport(lab.target(good, addresses=addresses, connect_timeout=5.0), ask=nobody,
                                 accept_new=False)
        connected = await transport.connect()
        events.append(connected.address.host)
        await transport.close()

    await asyncio.gather(timeout_of_the_bad_one(), both())
    assert events == [lab.address(good), "bad"]


async def test_an_old_address_that_another_machine_has_now_is_passed_over(lab):
    good, other = lab.plain[0], lab.one("changedkey")
    addresses = (Address(lab.address(other)), Address(lab.address(good)))
    transport = SshTransport(lab.target(good, addresses=addresses), ask=nobody, accept_new=False)
    try:
        assert (await transport.connect()).address.host == lab.address(good)
    finally:
        await transport.close()


async def test_an_accepted_host_key_is_written_down_and_not_asked_for_again(lab, connect, tmp_path):
    name, person = lab.one("newkey"), Person(host_key="yes")
    known_hosts = tmp_path / "ssh" / "known_hosts"
    first = await connect(name, ask=person, known_hosts=str(known_hosts))
    assert [kind for kind, *_ in person.asked] == [QuestionKind.HOST_KEY]
    _, node, text, detail = person.asked[0]
    assert node == name and lab.address(name) in text and detail.startswith("ssh-ed25519 SHA256:")
    assert known_hosts.read_text() == f"{lab.address(name)} {lab.nodes[name]['hostkey']}\n"
    await first.close()
    await connect(name, known_hosts=str(known_hosts))


async def test_accept_new_takes_unseen_keys_but_never_a_changed_one(lab, connect, tmp_path):
    known_hosts = tmp_path / "known_hosts"
    await connect(lab.one("newkey"), accept_new=True, known_hosts=str(known_hosts))
    assert lab.nodes[lab.one("newkey")]["hostkey"] in known_hosts.read_text()
    with pytest.raises(HostKeyChanged):
        await connect(lab.one("changedkey"), accept_new=True)


async def test_a_host_key_that_somebody_refuses_stays_unknown(lab, connect, tmp_path):
    with pytest.raises(HostKeyUnknown):
        await connect(lab.one("newkey"), ask=Person(host_key="no"), known_hosts=str(tmp_path / "known_hosts"))
    assert not (tmp_path / "known_hosts").exists()


async def test_a_revoked_host_key_is_refused(lab, connect, tmp_path):
    name = lab.plain[0]
    (tmp_path / "known_hosts").write_text(f"@revoked * {lab.nodes[name]['hostkey']}\n")
    with pytest.raises(HostKeyChanged) as caught:
        await connect(name, accept_new=True, known_hosts=str(tmp_path / "known_hosts"))
    assert caught.value.code == "host-key-revoked"


async def test_a_password_is_asked_for_once_and_remembered_for_the_next_connection(lab):
    name = lab.one("password")
    person = Person(password=lab.nodes[name]["password"])
    transport = SshTransport(lab.target(name), ask=person, accept_new=False)
    try:
        await transport.connect()
        await transport.close()
        await transport.connect()
        assert [kind for kind, *_ in person.asked] == [QuestionKind.PASSWORD]
        assert "fleet@" in person.asked[0][2]
    finally:
        await transport.close()


async def test_a_wrong_password_is_asked_for_three_times(lab, connect):
    person = Person(password="wrong")
    with pytest.raises(SignInFailed) as caught:
        await connect(lab.one("password"), ask=person)
    assert len(person.asked) == 3 and "was not accepted" in person.asked[1][2]
    assert "wrong" not in str(caught.value).split()


async def test_a_person_may_take_longer_than_the_connect_timeout(lab, connect):
    name, answer = lab.one("password"), asyncio.Event()

    async def ask(kind: QuestionKind, node: str, text: str, detail: str) -> str | None:
        await answer.wait()
        return lab.nodes[name]["password"]

    waiting = asyncio.ensure_future(connect(name, ask=ask, connect_timeout=1.0))
    done, _ = await asyncio.wait([waiting], timeout=2.0)
    assert not done
    answer.set()
    await waiting


async def test_an_answer_that_comes_after_the_server_hung_up_is_used_on_a_new_connection(lab, connect):
    name, asked, answer = lab.one("password"), asyncio.Event(), asyncio.Event()

    async def ask(kind: QuestionKind, node: str, text: str, detail: str) -> str | None:
        asked.set()
        await answer.wait()
        return lab.nodes[name]["password"]

    waiting = asyncio.ensure_future(connect(name, ask=ask))
    await asked.wait()
    lab.exec(name, "pkill -f 'sshd: .*priv|sshd: .*net'")
    answer.set()
    await waiting


async def test_a_passphrase_is_asked_for_until_it_opens_the_key(lab, connect):
    name, answers = lab.one("passphrase"), iter(["wrong", lab.passphrase])
    asked = []

    async def ask(kind: QuestionKind, node: str, text: str, detail: str) -> str | None:
        asked.append((kind, detail))
        return next(answers)

    await connect(name, ask=ask)
    assert asked == [(QuestionKind.PASSPHRASE, lab.nodes[name]["key"])] * 2


async def test_a_locked_key_that_the_node_does_not_want_is_not_asked_about(lab, connect):
    name, person = lab.plain[0], Person()
    locked = lab.nodes[lab.one("passphrase")]["key"]
    await connect(name, ask=person, identity_files=(locked, lab.key))
    assert person.asked == []


async def test_ssh_config_says_how_to_sign_in(lab, connect, tmp_path):
    config = tmp_path / "config"
    config.write_text(f"Match exec \"touch {tmp_path}/ran\"\n  User nobody\n"
                      f"Host atlas\n  HostName {lab.address(lab.one('port2222'))}\n  Port 2222\n"
                      f"  User fleet\n  IdentityFile {lab.key}\n  IdentitiesOnly yes\n"
                      f"  UserKnownHostsFile {lab.known_hosts}\n"
                      f"Host *\n  User wrong\n  UseKeychain yes\n  NoSuchOption 7\n")
    transport = SshTransport(lab.target(lab.one("port2222"), name="atlas", addresses=(Address("atlas"),), user=None,
                                        identity_files=(), known_hosts=str(tmp_path / "none"),
                                        ssh_config_files=(str(config),)), ask=nobody, accept_new=False)
    try:
        connected = await transport.connect()
        assert (connected.address.host, connected.address.port) == (lab.address(lab.one("port2222")), 2222)
        assert (await transport.run("id -un")).text == "fleet\n"
        assert not (tmp_path / "ran").exists()
    finally:
        await transport.close()


async def test_a_jump_goes_hop_by_hop(lab, connect):
    one, two, three = lab.plain
    jump = f"{lab.address(one)},fleet@{lab.address(two)}:22"
    # the hops' own credentials come from ssh_config
    node = await connect(three, jump=jump, ssh_config_files=(lab.ssh_config,))
    assert (await node.run("echo $SSH_CONNECTION")).text.split()[0] == lab.address(two)


async def test_a_jump_that_fails_names_the_hop_that_could_not_be_reached(lab, connect):
    one, dead = lab.plain[0], lab.one("nosshd")
    with pytest.raises(NodeRefused) as caught:
        await connect(lab.plain[1], jump=f"{one},{dead}", ssh_config_files=(lab.ssh_config,))
    assert f"Could not reach {dead} ({lab.address(dead)}:22) through {one}" in caught.value.what


async def test_a_jump_host_without_forwarding_is_told_apart(lab, connect):
    hop = lab.one("noforward")
    with pytest.raises(NodeRefused) as caught:
        await connect(lab.plain[1], jump=hop, ssh_config_files=(lab.ssh_config,))
    assert caught.value.code == "forwarding-refused" and "AllowTcpForwarding" in caught.value.remedy


async def test_the_host_key_of_a_hop_is_verified(lab, connect):
    with pytest.raises(HostKeyChanged) as caught:
        await connect(lab.plain[1], jump=lab.one("changedkey"), ssh_config_files=(lab.ssh_config,))
    assert lab.one("changedkey") in caught.value.what


async def test_more_commands_at_once_than_a_server_allows_take_their_turn(lab, connect):
    node = await connect(lab.plain[0])
    done = await asyncio.gather(*(node.run('sleep 0.2; echo "$1"', [str(i)], timeout=30) for i in range(30)))
    assert [d.text for d in done] == [f"{i}\n" for i in range(30)]


async def test_a_command_past_its_time_is_ended_on_the_node(lab, connect, tmp_path):
    node = await connect(lab.plain[0])
    with pytest.raises(CommandTimeout):
        await node.run("echo $$ > pids; sleep 1000 & echo $! >> pids; wait", timeout=1.0)
    for pid in (await node.run("cat pids")).text.split():
        await until_ended(node, pid)


async def test_a_cancelled_command_is_ended_on_the_node(lab, connect):
    node = await connect(lab.plain[0])
    await node.run("rm -f started; mkfifo started")
    task = asyncio.create_task(node.run("echo $$ > started; sleep 1000", timeout=60))
    pid = (await node.run("cat started")).text.strip()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_ended(node, pid)


async def test_closing_the_lines_ends_the_script_on_the_node(lab, connect):
    node = await connect(lab.plain[0])
    async with aclosing(node.lines("echo $$; while :; do sleep 1000; done")) as lines:
        pid = await anext(lines)
        assert await still_runs(node, pid)
    await until_ended(node, pid)


async def test_a_detached_process_outlives_the_connection(lab, connect):
    node = await connect(lab.plain[0])
    pid = (await node.run("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!")).text.strip()
    await node.close()
    again = await connect(lab.plain[0])
    assert await still_runs(again, pid)
    await again.run('kill "$1"', [pid])


@pytest.mark.parametrize("loss", ["cut", "silent", "kill"])
async def test_a_lost_node_is_noticed_and_comes_back(lab, connect, loss):
    name = lab.plain[1]
    node = await connect(name)
    running = asyncio.create_task(node.run("sleep 1000", timeout=60.0))
    following = asyncio.create_task(anext(node.lines("sleep 1000")))
    await node.run(":")
    if loss == "kill":
        lab.kill(name)
    else:
        lab.cut(name, silent=loss == "silent")
    for task in (running, following):
        # far less than the command's own 60 s: the keep-alive ends it
        with pytest.raises(ConnectionDropped):
            await asyncio.wait_for(task, 15.0)
    with pytest.raises(ConnectionDropped):
        await node.run(":")
    lab.boot(name) if loss == "kill" else lab.heal(name)
    await node.connect()
    assert (await node.run("echo back")).text == "back\n"


async def test_a_server_that_is_killed_in_the_middle_of_a_command_is_a_dropped_connection(lab, connect):
    name = lab.plain[1]
    node = await connect(name)
    async with aclosing(node.lines("echo $$; sleep 1000")) as lines:
        await anext(lines)
        running = asyncio.create_task(node.run("sleep 1000", timeout=60))
        await node.run(":")
        lab.kill_sshd(name)
        with pytest.raises(ConnectionDropped):
            await asyncio.wait_for(running, 15)
        with pytest.raises(ConnectionDropped):
            await asyncio.wait_for(anext(lines), 15)


async def test_a_short_cut_is_survived(lab, connect):
    name = lab.plain[1]
    node = await connect(name)
    running = asyncio.create_task(node.run("sleep 2; echo there", timeout=20))
    await node.run(":")
    lab.cut(name)
    lab.heal(name)
    assert (await running).text == "there\n"


async def test_files_are_read_in_parts_with_or_without_sftp(lab, connect):
    for trait in ("nosftp", "noisy", "busybox"):
        node = await connect(lab.one(trait))
        await node.run("head -c 3000000 /dev/urandom > \"$1\"", ["-a 'file'"])
        path = "/home/fleet/-a 'file'"
        whole = await node.read_file(path, 0, 4_000_000, timeout=30)
        assert len(whole) == 3_000_000
        assert await node.read_file(path, 1_234_567, 1_500_000) == whole[1_234_567:2_734_567]
        assert await node.read_file(path, 2_999_990, 100) == whole[-10:]
        assert await node.read_file(path, 5_000_000, 10) == b""
        with pytest.raises(FleetError, match="cannot be read: permission denied"):
            await node.read_file("/etc/shadow", 0, 10)


async def test_connections_are_made_from_the_node(lab, connect):
    one, two = lab.plain[:2]
    node = await connect(one)
    stream = await node.open_connection(lab.address(two), 22)
    assert (await stream.readexactly(4)) == b"SSH-"
    stream.abort()
    with pytest.raises(PortClosed) as refused:
        await node.open_connection("127.0.0.1", 1)
    assert refused.value.code == "port-closed"
    with pytest.raises(PortClosed) as silent:
        await node.open_connection(lab.address(lab.one("drop")), 22, timeout=1.0)
    assert silent.value.code == "port-silent"
    with pytest.raises(NodeError, match="AllowTcpForwarding"):
        await (await connect(lab.one("noforward"))).open_connection("127.0.0.1", 22)


async def test_a_port_of_one_node_is_a_port_of_another_through_us(lab, connect):
    head, worker = await connect(lab.plain[0]), await connect(lab.plain[1])
    forward = await head.listen("127.0.0.1", 0, lambda: worker.open_connection("127.0.0.1", 22))
    try:
        streams = await asyncio.gather(*(head.open_connection("127.0.0.1", forward.port) for _ in range(3)))
        for stream in streams:
            assert await stream.readexactly(4) == b"SSH-"
            stream.close()
        with pytest.raises(PortTaken):
            await head.listen("127.0.0.1", forward.port, lambda: worker.open_connection("127.0.0.1", 22))
    finally:
        await forward.close()
    with pytest.raises(PortClosed):
        await head.open_connection("127.0.0.1", forward.port)


async def test_a_relay_carries_much_both_ways_and_keeps_little_in_hand(lab, connect):
    head = await connect(lab.plain[0])
    size = 20_000_000

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        forward = await head.listen("127.0.0.1", 0, lambda: connect_tcp("here", "127.0.0.1", port, 5.0))
        stream = await head.open_connection("127.0.0.1", forward.port)

        async def send() -> None:
            for _ in range(size // 100_000):
                await stream.write(b"x" * 100_000)
            stream.write_eof()

        sending, got = asyncio.create_task(send()), 0
        while data := await stream.read(1 << 20):
            got += len(data)
        await sending
        assert got == size
        stream.close()
        await forward.close()


async def test_a_relay_to_nowhere_ends_the_connection(lab, connect):
    node = await connect(lab.plain[0])
    forward = await node.listen("127.0.0.1", 0, lambda: node.open_connection("127.0.0.1", 1))
    stream = await node.open_connection("127.0.0.1", forward.port)
    assert await asyncio.wait_for(stream.read(1), 10) == b""


async def test_too_many_sign_ins_at_once_are_told_apart_from_a_dead_machine(lab, connect):
    name = lab.one("busy")
    held = await connect_tcp("here", lab.address(name), 22, 5.0)
    try:
        assert await held.readexactly(4) == b"SSH-"
        with pytest.raises(NodeRefused) as caught:
            await connect(name)
        assert caught.value.code == "sshd-closed" and "MaxStartups" in caught.value.remedy
    finally:
        held.abort()


async def test_what_is_no_ssh_server_is_said_to_be_none(lab, connect):
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 200)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(web, lab.root_addr, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NodeRefused) as caught:
            await connect(lab.plain[0], addresses=(Address(lab.root_addr, port),))
    assert caught.value.code in ("not-ssh", "sshd-closed")


async def test_a_port_that_takes_connections_and_says_nothing_times_out_as_such(lab, connect):
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, lab.root_addr, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NodeUnreachable) as caught:
            await connect(lab.plain[0], addresses=(Address(lab.root_addr, port),), connect_timeout=1.0)
    assert caught.value.code == "handshake-timeout"


async def test_no_cipher_in_common_is_said(lab, connect):
    name = lab.plain[0]
    config = Path(lab.known_hosts).parent / "odd_config"
    config.write_text(f"Host {name}\n  Ciphers 3des-cbc\n")
    with pytest.raises(NodeRefused) as caught:
        await connect(name, ssh_config_files=(str(config),))
    assert caught.value.code == "key-exchange"
