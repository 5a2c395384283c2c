"""Who listens on a port, from the words of ss, netstat, lsof and /proc."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.nodes.listeners import Listener, in_the_way, read_listeners

LINES = {
    "ss": 'ss|LISTEN 0      1          127.0.0.1:50052      0.0.0.0:*    users:(("ggml-rpc-server",pid=812,fd=3))',
    "busybox netstat": "netstat|tcp        0      0 127.0.0.1:50052      0.0.0.0:*  LISTEN  812/ggml-rpc-server",
    "lsof": "lsof|p812\nlsof|cggml-rpc-server\nlsof|f3\nlsof|n127.0.0.1:50052",
    "proc": "proc|   0: 0100007F:C384 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0\n"
            "inode|4242 812 ggml-rpc-server",
}


@pytest.mark.parametrize("tool", LINES)
def test_each_tool_names_the_owner(tool: str) -> None:
    assert read_listeners(LINES[tool], 50052) == (Listener("127.0.0.1", 50052, 812, "ggml-rpc-server"),)
    assert read_listeners(LINES[tool], 5005) == ()


@pytest.mark.parametrize(("line", "host"), [
    ("ss|LISTEN 0 512 *:8080 *:*", "*"),
    ("ss|LISTEN 0 512 0.0.0.0:8080 0.0.0.0:*", "0.0.0.0"),
    ("ss|LISTEN 0 512 [::]:8080 [::]:*", "::"),
    ("ss|LISTEN 0 512 [::ffff:10.0.0.2]:8080 *:*", "10.0.0.2"),
    ("ss|LISTEN 0 512 127.0.0.53%lo:8080 0.0.0.0:*", "127.0.0.53"),
    ("netstat|tcp4       0      0  127.0.0.1.8080         *.*                    LISTEN     ", "127.0.0.1"),
    ("netstat|tcp46      0      0  *.8080                 *.*                    LISTEN     ", "*"),
    ("proc|0: 00000000:1F90 00000000:0000 0A", "0.0.0.0"),
    ("proc|0: 00000000000000000000000001000000:1F90 00000000:0000 0A", "::1"),
])
def test_an_owner_who_is_hidden_is_still_an_owner(line: str, host: str) -> None:
    listener, = read_listeners(line, 8080)
    assert (listener.host, listener.pid) == (host, None)
    assert listener.owner == "a process of another user"


def test_netstat_and_lsof_of_a_mac_are_one_listener() -> None:
    text = "netstat|tcp4 0 0 127.0.0.1.8080 *.* LISTEN\nlsof|p5\nlsof|cllama-server\nlsof|n127.0.0.1:8080"
    assert read_listeners(text, 8080) == (Listener("127.0.0.1", 8080, 5, "llama-server"),)


@pytest.mark.parametrize(("theirs", "ours", "conflict"), [
    ("127.0.0.1", "127.0.0.1", True), ("127.0.0.1", "10.0.0.2", False), ("*", "10.0.0.2", True),
    ("0.0.0.0", "127.0.0.1", True), ("::", "127.0.0.1", True), ("127.0.0.1", "0.0.0.0", True),
    ("127.0.0.1", "", True), ("127.0.0.1", "localhost", True), ("::1", "127.0.0.1", False)])
def test_one_address_does_not_take_another(theirs: str, ours: str, conflict: bool) -> None:
    assert (in_the_way((Listener(theirs, 1),), ours) is not None) is conflict


@given(st.text(), st.integers(0, 65535))
def test_no_text_makes_it_fail(text: str, port: int) -> None:
    for tool in ("ss", "netstat", "lsof", "proc", "inode"):
        read_listeners("\n".join(f"{tool}|{line}" for line in text.split("\n")), port)
