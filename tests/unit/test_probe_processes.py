"""Engines among a node's processes, and the sockets that they hold."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Process, Socket
from fleet.nodes.processes import is_engine, read_processes
from fleet.nodes.sockets import read_netstat, read_owners, read_ss, read_table, with_owners

RPC = Path(__file__).parents[1] / "data" / "rpc"


def stat(pid: int, name: str, state: str = "S", parent: int = 1) -> str:
    return f"{pid} ({name}) {state} {parent} 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 217444 99 10 18"


def block(pid: int, name: str, *argv: str, **more) -> str:
    return f"boot:217444\n{stat(pid, name, **more)} \n" + "".join(f"{word}\0" for word in argv)


def test_an_engine_is_read_with_all_that_identifies_it():
    (process,) = read_processes(
        {"812": block(812, "ggml-rpc-server", "/opt/llama/bin/ggml-rpc-server", "-H", "10.0.0.5", "")},
        "16384\ndr-xr-xr-x 9 ops staff 0 Nov 30 22:00 /proc/812\n")
    assert process == Process(812, "boot:217444", "S", ("/opt/llama/bin/ggml-rpc-server", "-H", "10.0.0.5"),
                              rss=163840, user="ops", cpu_seconds=3.0, parent=1)


def test_a_name_may_hold_parentheses_and_spaces():
    (process,) = read_processes({"5": block(5, "llama-server) R 1 (", "llama-server")})
    assert (process.state, process.parent) == ("S", 1)


def test_a_zombie_is_told_apart_and_has_the_name_that_is_left():
    (process,) = read_processes({"5": f"boot:9\n{stat(5, 'llama-server', 'Z')} \n"})
    assert process.is_zombie and process.argv == ("llama-server",)


def test_a_wrapper_whose_engine_is_listed_is_left_out():
    blocks = {"10": block(10, "llama-server", "/bin/sh", "/usr/local/bin/llama-server", "-m", "x"),
              "11": block(11, "llama-server", "/opt/llama/llama-server", "-m", "x", parent=10)}
    assert [process.pid for process in read_processes(blocks)] == [11]
    assert [process.pid for process in read_processes({"10": blocks["10"]})] == [10]


def test_who_it_belongs_to_is_remembered_for_one_life_of_a_pid():
    text = block(812, "ollama", "ollama", "serve")
    before = (Process(812, "boot:217444", "S", ("ollama",), user="ops"),)
    assert read_processes({"812": text}, "4096\n", before)[0].user == "ops"
    other = (Process(812, "boot:1", "S", ("ollama",), user="ops"),)
    assert read_processes({"812": text}, "4096\n", other)[0].user == ""


@pytest.mark.parametrize(("argv", "expected"), [
    (("/opt/llama/bin/llama-server", "-m", "x"), True),
    (("rpc-server",), True),
    (("ollama", "serve"), True),
    (("VLLM::EngineCore",), True),
    (("python3", "-m", "vllm.entrypoints.openai.api_server"), True),
    (("/usr/bin/python3.12", "/usr/local/bin/vllm", "serve", "m"), True),
    (("/home/u/.local/bin/TinyTitanServer", "--port", "8080"), True),
    (("/bin/sh", "/usr/local/bin/llama-server", "-m", "x"), True),
    (("sh", "-c", "echo llama-server"), False),
    (("vim", "llama-server.md"), False),
    (("tail", "-f", "/var/log/llama-server"), False),
    (("python3", "train.py", "--like", "vllm"), False),
    ((), False),
])
def test_which_command_lines_are_engines(argv: tuple[str, ...], expected: bool):
    assert is_engine(argv) is expected


def test_a_probes_own_question_is_no_engine():
    assert read_processes({"9": block(9, "llama-server", "/opt/llama-server", "--version")}) == ()


def test_a_macs_process_comes_from_a_line_of_ps():
    line = "  812     1 S    204800   1:02.50 ops   /opt/homebrew/bin/llama-server -m /Users/ops/m.gguf"
    (process,) = read_processes({"812": f"boot:Thu\n{line}\n"}, linux=False)
    assert process == Process(812, "boot:Thu", "S", ("/opt/homebrew/bin/llama-server", "-m", "/Users/ops/m.gguf"),
                              rss=204800 * 1024, user="ops", cpu_seconds=62.5, parent=1)


# Sockets ----------------------------------------------------------------------------------------

TABLE = """   0: 0100007F:C384 00000000:0000 0A 00000000:00000002 00:00000000 00000000     0        0 12345 1 0 100
   1: 0E00140A:C384 0200140A:A0E4 01 00000000:00000021 00:00000000 00000000     0        0 12346 1 0 20
   2: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 777 1 0 100
   3: 0100007F:1F90 0100007F:9999 06 00000000:00000000 00:00000000 00000000  1000        0 0 1 0 100
   0: 00000000000000000000000001000000:2382 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 888 1
   1: 0000000000000000FFFF00000E00140A:2382 0000000000000000FFFF00000200140A:A0E5 01 00000000:00000000 00:0 0 0 0 889 1
"""
OWNERS = """/proc/812/fd/:
lrwx------ 1 root root 64 Nov 30 22:00 4 -> socket:[12345]
lrwx------ 1 root root 64 Nov 30 22:00 5 -> socket:[12346]
@owners
lrwx------ 1 root root 64 Nov 30 22:00 3 -> socket:[777]
/proc/900/fd/:
@comm 900 nginx: worker
"""


def test_the_kernels_table_has_listeners_with_those_who_wait_and_connections():
    rows = read_table(TABLE)
    assert [socket for socket, _ in rows] == [
        Socket("127.0.0.1", 50052, listening=True, recv_queue=2),
        Socket("10.20.0.14", 50052, "10.20.0.2", 41188, False, 33),
        Socket("127.0.0.1", 8080, listening=True), Socket("::1", 9090, listening=True),
        Socket("10.20.0.14", 9090, "10.20.0.2", 41189)]


def test_each_socket_has_its_owner_also_one_that_is_no_engine():
    engine = Process(812, "s", "S", ("/opt/ggml-rpc-server",))
    found = with_owners(read_table(TABLE), OWNERS, (engine,), frozenset({8080}))
    assert [(s.local_port, s.pid, s.program) for s in found] == [
        (50052, 812, "ggml-rpc-server"), (50052, 812, "ggml-rpc-server"), (8080, 900, "nginx: worker")]


def test_ss_shows_the_owner_of_a_slot():
    rows = [socket for socket, _ in read_ss((RPC / "ss_busy_worker.txt").read_text())]
    assert rows == [
        Socket("10.20.0.14", 50052, "10.20.0.2", 41188, False, 0, 8120, "ggml-rpc-server"),
        Socket("0.0.0.0", 50052, listening=True, recv_queue=2, pid=8120, program="ggml-rpc-server")]


def test_ss_without_a_state_column_shows_who_waits():
    rows = [socket for socket, _ in read_ss((RPC / "ss_second_coordinator_queued.txt").read_text())]
    assert [(s.peer_host, s.peer_port, s.recv_queue, s.listening) for s in rows] == [
        ("10.20.0.2", 41120, 0, False), ("10.20.0.3", 41134, 33, False)]


def test_rows_of_ss_carry_an_inode_and_six_byte_addresses():
    ((first, inode), (second, _)) = read_ss(
        "LISTEN 0 128 [::]:22 [::]:* ino:63 sk:1 <->\nESTAB 0 0 [::ffff:10.0.0.1]:22 [fe80::2]:5 ino:64 sk:2 <->\n")
    assert (first, inode) == (Socket("::", 22, listening=True), "63")
    assert second == Socket("10.0.0.1", 22, "fe80::2", 5)


def test_a_macs_sockets_come_from_netstat_and_their_owners_from_lsof():
    netstat = ("tcp4       0      0  127.0.0.1.8080         *.*                    LISTEN\n"
               "tcp46      3      0  *.50052                *.*                    LISTEN\n"
               "tcp4      33      0  10.20.0.30.50052       10.20.0.2.41120        ESTABLISHED\n"
               "tcp4       0      0  10.20.0.30.22          10.20.0.2.41121        ESTABLISHED\n")
    lsof = "p812\ncggml-rpc-server\nf4\nn*:50052\np900\ncnginx\nn127.0.0.1:8080\n"
    engine = Process(812, "s", "S", ("ggml-rpc-server",))
    assert read_netstat(netstat, lsof, (engine,), frozenset({8080})) == (
        Socket("127.0.0.1", 8080, listening=True, pid=900, program="nginx"),
        Socket("0.0.0.0", 50052, listening=True, recv_queue=3, pid=812, program="ggml-rpc-server"),
        Socket("10.20.0.30", 50052, "10.20.0.2", 41120, False, 33))


PIECES = st.sampled_from([
    *TABLE.split(" "), *OWNERS.split("\n"),
    "\n", " ", "LISTEN", "ESTAB", "[::]:22", "*:*",
    "tcp4 0 0 *.8080 *.* LISTEN", "p99999999999", "n*:99999999", "\0", "(", ")", "@comm 1", "/proc/99/fd/:",
    stat(5, "vllm")])


@given(st.lists(PIECES, max_size=30).map(" ".join), st.text(max_size=100))
def test_no_text_whatsoever_breaks_a_reader(mixed: str, junk: str):
    for text in (mixed, junk, mixed.replace(" ", "\n")):
        read_owners(text)
        with_owners(read_table(text), text, (), frozenset())
        read_ss(text)
        read_netstat(text, text, (), frozenset({8080}))
        read_processes({"5": text, "6": f"boot:1\n{text}", text[:5]: text}, text)
        read_processes({"5": f"boot:1\n{text}"}, text, linux=False)
