"""TCP sockets of a node: the kernel's own table, `ss`, or macOS's netstat with lsof."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from fleet.model import Process, Socket
from fleet.nodes.hardware.figures import whole

_ROW = re.compile(r"^\s*[0-9]+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) "
                  r"([0-9A-F]{2}) [0-9A-F]{8}:([0-9A-F]{8}) \S+ \S+ +[0-9]+ +[0-9]+ +([0-9]{1,20})\b")
_LISTEN, _ESTABLISHED = "0A", "01"
_FOLDER = re.compile(r"^/proc/([0-9]{1,10})/fd/?:$")
_INODE = re.compile(r"socket:\[([0-9]{1,20})\]")
_COMM = re.compile(r"^@comm ([0-9]{1,10}) (.{0,64})$")
_SS = re.compile(r"^(?:([A-Z0-9-]{4,10})\s+)?([0-9]{1,12})\s+([0-9]{1,12})\s+"
                 r"(\S+):([0-9*]{1,5})\s+(\S+):([0-9*]{1,5})"
                 r"(?:\s+users:\(\(\"([^\"]{0,64})\",pid=([0-9]{1,10}))?")
_SS_INODE = re.compile(r"\bino:([0-9]{1,20})\b")
_NETSTAT = re.compile(r"^tcp\S*\s+([0-9]{1,12})\s+[0-9]+\s+(\S+)\.([0-9]{1,5})\s+(\S+)\.([0-9*]{1,5})"
                      r"\s+(LISTEN|ESTABLISHED)")
_MOST = 4096


def read_table(text: str) -> tuple[tuple[Socket, str], ...]:
    """Sockets of /proc/net/tcp and tcp6 that listen or are connected, each with its inode."""
    found = []
    for line in text.split("\n")[:_MOST]:
        match = _ROW.match(line)
        if match is None or match[5] not in (_LISTEN, _ESTABLISHED):
            continue
        listening = match[5] == _LISTEN
        found.append((Socket(
            _host(match[1]), int(match[2], 16), "" if listening else _host(match[3]),
            0 if listening else int(match[4], 16), listening, int(match[6], 16)), match[7]))
    return tuple(found)


def _host(digits: str) -> str:
    """An address as the kernel prints it: 32-bit words, each with its lowest byte first."""
    words = [bytes.fromhex(digits[place:place + 8])[::-1] for place in range(0, len(digits), 8)]
    raw = b"".join(words)
    if len(raw) == 4:
        return str(IPv4Address(raw))
    address = IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def read_owners(text: str) -> tuple[dict[str, int], dict[int, str]]:
    """Whose a socket is: inode -> pid from listings of /proc/PID/fd, and pid -> name from "@comm" lines.

    After "@owners" the order is the other way round: the socket first, then the folder it is in.
    """
    inodes: dict[str, int] = {}
    names: dict[int, str] = {}
    pid, waiting, turned = None, "", False
    for line in text.split("\n")[:65536]:
        if match := _COMM.match(line):
            names[int(match[1])] = match[2]
        elif line == "@owners":
            turned = True
        elif match := _FOLDER.match(line):
            pid = int(match[1])
            if turned and waiting:
                inodes.setdefault(waiting, pid)
                waiting = ""
        elif match := _INODE.search(line):
            if turned:
                waiting = match[1]
            elif pid is not None:
                inodes.setdefault(match[1], pid)
    return inodes, names


def with_owners(rows: Iterable[tuple[Socket, str]], owners: str, processes: Iterable[Process],
                ports: frozenset[int]) -> tuple[Socket, ...]:
    """The sockets of `ports` and of every port that one of `processes` listens on, each with its owner.

    `rows` has each socket with its inode; `owners` is the text that `read_owners` reads.
    """
    inodes, names = read_owners(owners)
    engines = {process.pid: process.argv[0].rpartition("/")[2][:64] for process in processes}
    names |= engines
    sockets = [_owned(socket, inodes.get(inode, socket.pid), names) for socket, inode in rows]
    return _of_interest(sockets, set(engines), ports)


def _owned(socket: Socket, pid: int | None, names: dict[int, str]) -> Socket:
    return Socket(socket.local_host, socket.local_port, socket.peer_host, socket.peer_port, socket.listening,
                  socket.recv_queue, pid, names.get(pid, socket.program) if pid is not None else "")


def _of_interest(sockets: list[Socket], engines: set[int], ports: frozenset[int]) -> tuple[Socket, ...]:
    wanted = ports | {socket.local_port for socket in sockets if socket.listening and socket.pid in engines}
    return tuple(socket for socket in sockets if socket.local_port in wanted)


def read_ss(text: str) -> tuple[tuple[Socket, str], ...]:
    """Rows of `ss -Htan`, each with its inode ("" without -e) and its owner where -p told one.

    Without a state column (one state alone was asked for) a row with a peer is a connection.
    """
    found = []
    for line in text.split("\n")[:_MOST]:
        match = _SS.match(line)
        if match is None or match[1] not in (None, "LISTEN", "ESTAB"):
            continue
        local, peer = whole(match[5]), whole(match[7])
        if local is None or local > 65535:
            continue
        listening = match[1] == "LISTEN" or (match[1] is None and peer is None)
        inode = _SS_INODE.search(line)
        found.append((Socket(
            _plain(match[4]), local, "" if listening else _plain(match[6]), 0 if listening else min(peer or 0, 65535),
            listening, int(match[2]), whole(match[9] or ""), match[8] or ""), inode[1] if inode else ""))
    return tuple(found)


def _plain(host: str) -> str:
    bare = host.removeprefix("[").removesuffix("]").removeprefix("::ffff:")[:64]
    return "0.0.0.0" if bare == "*" else bare


def read_netstat(text: str, lsof: str, processes: Iterable[Process], ports: frozenset[int]) -> tuple[Socket, ...]:
    """`netstat -an -p tcp` of macOS, with the owners of listening ports from `lsof -F pcn`."""
    owners = _read_lsof(lsof)
    found = []
    for line in text.split("\n")[:_MOST]:
        match = _NETSTAT.match(line)
        if match is None or int(match[3]) > 65535:
            continue
        listening = match[6] == "LISTEN"
        pid, program = owners.get(int(match[3]), (None, "")) if listening else (None, "")
        peer = 0 if listening else min(whole(match[5]) or 0, 65535)
        found.append(Socket(_plain(match[2]), int(match[3]), "" if listening else _plain(match[4]), peer, listening,
                            int(match[1]), pid, program))
    return _of_interest(found, {process.pid for process in processes}, ports)


def _read_lsof(text: str) -> dict[int, tuple[int | None, str]]:
    """Port -> (pid, program), from lines p1234, cprogram, n127.0.0.1:8080."""
    owners: dict[int, tuple[int | None, str]] = {}
    pid, program = None, ""
    for line in text.split("\n")[:_MOST]:
        if line.startswith("p"):
            pid, program = whole(line[1:]), ""
        elif line.startswith("c"):
            program = line[1:65]
        elif line.startswith("n") and "->" not in line:
            port = whole(line.rpartition(":")[2])
            if port is not None and port <= 65535:
                owners.setdefault(port, (pid, program))
    return owners
