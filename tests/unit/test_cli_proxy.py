"""`quarterdeck proxy`: started as a person does, in front of a server that answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.exit_codes import ExitCode

pytestmark = pytest.mark.timeout(60)
COMMAND = "import sys; from app.cli import main; sys.exit(main())"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    """A server with one model, by hand: just what /v1/models has to say."""
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d"
                     b"\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def quarterdeck(*words: str, cwd: Path, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QUARTERDECK_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, *words, cwd=cwd, env={**clean, "HOME": str(cwd), **(env or {})},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def served(process: asyncio.subprocess.Process, port: int) -> None:
    """It says where it serves, passes on what its server has, and ends when it is asked to."""
    assert process.stderr is not None
    said = await asyncio.wait_for(process.stderr.readline(), 30)
    assert said.decode().strip() == f"quarterdeck: the proxy serves at http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client, asyncio.timeout(20):
        for _ in range(300):                               # until its first look at the server
            if "tiny" in (await client.get("/v1/models")).text:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("it never learned what its server has")
    process.send_signal(signal.SIGTERM)
    assert (await ended(process))[0] == ExitCode.OK


async def test_it_serves_from_variables_alone(tmp_path: Path, upstream: str) -> None:
    port = free_port()
    env = {"QUARTERDECK_TARGET_URL": upstream, "QUARTERDECK_LISTEN": f"127.0.0.1:{port}"}
    await served(await quarterdeck("proxy", "run", cwd=tmp_path, env=env), port)


async def test_it_serves_from_a_file(tmp_path: Path, upstream: str) -> None:
    port = free_port()
    (tmp_path / "fleet.yaml").write_text(
        f"proxy:\n  listen: 127.0.0.1:{port}\n  upstreams:\n    one:\n      url: {upstream}\n")
    process = await quarterdeck("proxy", "run", cwd=tmp_path)
    await served(process, port)
    code, _, said = await ended(await quarterdeck("proxy", "health", cwd=tmp_path))
    assert code == ExitCode.FAILED and f"the proxy on 127.0.0.1:{port} does not answer" in said


async def test_a_file_without_servers_says_where_they_go(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("fleet: home\n")
    code, _, said = await ended(await quarterdeck("proxy", "run", cwd=tmp_path))
    assert code == ExitCode.CONFIG and "names no server for the proxy" in said and "upstreams:" in said


async def test_a_wrong_variable_is_named_with_what_it_should_be(tmp_path: Path) -> None:
    env = {"QUARTERDECK_TARGET_URL": "ftp://10.0.0.4", "QUARTERDECK_LISTEN": "here"}
    code, _, said = await ended(await quarterdeck("proxy", "run", cwd=tmp_path, env=env))
    assert code == ExitCode.CONFIG and "QUARTERDECK_TARGET_URL" in said and "QUARTERDECK_LISTEN" in said
    assert "Traceback" not in said


async def test_the_variables_are_listed(tmp_path: Path) -> None:
    code, out, _ = await ended(await quarterdeck("proxy", "variables", cwd=tmp_path))
    assert code == ExitCode.OK and "QUARTERDECK_TARGET_URL" in out


async def test_the_proxy_of_a_fleet_is_started_shown_and_stopped_from_the_shell(tmp_path: Path, upstream: str):
    port = free_port()
    (tmp_path / "fleet.yaml").write_text(
        f"nodes: {{here: {{address: local, state_dir: {tmp_path}/state}}}}\n"
        "discovery: {mdns: false, ssh_config: false}\n"
        f"proxy: {{listen: 127.0.0.1:{port}, upstreams: {{tower: {{url: {upstream}}}}}}}\n")
    assert (await ended(await quarterdeck("proxy", "status", cwd=tmp_path)))[0] == ExitCode.NOT_THERE
    code, out, err = await ended(await quarterdeck("proxy", "start", cwd=tmp_path))
    assert code == ExitCode.OK, out + err
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        code, out, _ = await ended(await quarterdeck("proxy", "status", cwd=tmp_path))
        assert code == ExitCode.OK and f"http://127.0.0.1:{port}" in out and "tower" in out
        _, out, _ = await ended(await quarterdeck("proxy", "status", "--json", cwd=tmp_path))
        assert json.loads(out)["proxies"][0]["upstreams"][0]["models"] == ["tiny"]
        assert (await ended(await quarterdeck("proxy", "requests", cwd=tmp_path)))[0] == ExitCode.OK
        code, _, err = await ended(await quarterdeck("proxy", "cancel", "nothing", cwd=tmp_path))
        assert code == ExitCode.NOT_THERE and "No live request" in err
    finally:
        code, out, err = await ended(await quarterdeck("proxy", "stop", cwd=tmp_path))
    assert code == ExitCode.OK, out + err
    assert (await ended(await quarterdeck("proxy", "stop", cwd=tmp_path)))[0] == ExitCode.NOT_THERE


async def test_who_only_looks_starts_no_proxy(tmp_path: Path):
    code, _, err = await ended(await quarterdeck("--read-only", "proxy", "start", cwd=tmp_path))
    assert code == ExitCode.USAGE and "proxy start" in err


async def test_a_headless_engine_runs_the_proxy_inside_and_other_terminals_find_it(tmp_path: Path, upstream: str):
    port = free_port()
    (tmp_path / "fleet.yaml").write_text(
        f"nodes: {{here: {{address: local, state_dir: {tmp_path}/state}}}}\n"
        "discovery: {mdns: false, ssh_config: false, announce: false}\n"
        f"proxy: {{enabled: true, listen: 127.0.0.1:{port}, upstreams: {{tower: {{url: {upstream}}}}}}}\n")
    env = {"XDG_STATE_HOME": str(tmp_path / "home")}
    headless = await quarterdeck("--no-ui", cwd=tmp_path, env=env)
    assert headless.stderr is not None
    assert b"the proxy serves at" in await asyncio.wait_for(headless.stderr.readline(), 30)
    try:
        code, out, err = await ended(await quarterdeck("proxy", "status", cwd=tmp_path, env=env))
        assert code == ExitCode.OK and f"http://127.0.0.1:{port}" in out and "inside" in out, out + err
        files = list((tmp_path / "home" / "quarterdeck" / "inside").iterdir())
        assert [file.stat().st_mode & 0o777 for file in files] == [0o600]
    finally:
        headless.send_signal(signal.SIGTERM)
        await ended(headless)
    assert (await ended(await quarterdeck("proxy", "status", cwd=tmp_path, env=env)))[0] == ExitCode.NOT_THERE
