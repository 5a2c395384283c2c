"""Who listens on a port of a node, from what its own tools print: pure.

`qd_listeners` of supervise/claim.sh prints the lines of ss, netstat, lsof or /proc/net/tcp, each
behind the tool's name and a bar.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_SS_OWNER = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d{1,10})')
_ANY = frozenset({"*", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. `host` is an address as text, "*" for all of them."""

    host: str
    port: int
    pid: int | None = None      # None: the node does not tell us (another user's process)
    program: str = ""

    @property
    def owner(self) -> str:
        """Who it is, for a sentence."""
        if self.pid is None:
            return "a process of another user"
        return f"{self.program or 'a process'} (pid {self.pid})"


def read_listeners(text: str, port: int) -> tuple[Listener, ...]:
    """The listeners on `port` in a script's output; lines that are nothing of ours are left out. Never raises."""
    found: list[Listener] = []
    lsof: dict[int, str] = {}
    inodes: dict[str, tuple[int, str]] = {}
    pid: int | None = None
    for line in text.split("\n"):
        if match := re.fullmatch(r"inode\|(\d{1,20}) (\d{1,10}) ?(.*)", line, re.ASCII):
            inodes[match[1]] = (int(match[2]), match[3])
    for line in text.split("\n"):
        tool, bar, rest = line.partition("|")
        if not bar:
            continue
        if tool == "ss":
            words = rest.split()
            owner = _SS_OWNER.search(rest)
            if len(words) >= 5 and words[0] == "LISTEN":
                _add(found, words[3], port, int(owner[2]) if owner else None, owner[1] if owner else "")
        elif tool == "netstat":
            words = rest.split()
            if len(words) >= 6 and "LISTEN" in words:
                number, slash, program = words[-1].partition("/")
                known = bool(slash) and number.isascii() and number.isdigit() and len(number) <= 10
                _add(found, words[3], port, int(number) if known else None, program if known else "")
        elif tool == "proc":
            words = rest.split()
            if len(words) >= 4 and words[3] == "0A":
                _add(found, _from_hex(words[1]), port, *inodes.get(words[9] if len(words) > 9 else "", (None, "")))
        elif tool == "lsof" and rest:
            if rest[0] == "p":
                pid = int(rest[1:]) if re.fullmatch(r"p[0-9]{1,10}", rest) else None
            elif rest[0] == "c" and pid is not None:
                lsof[pid] = rest[1:]
            elif rest[0] == "n" and pid is not None:
                _add(found, rest[1:], port, pid, lsof.get(pid, ""))
    best: dict[str, Listener] = {}
    for each in found:      # several tools may speak of one socket: keep who knows the owner
        if each.host not in best or best[each.host].pid is None:
            best[each.host] = each
    return tuple(best.values())


def in_the_way(listeners: tuple[Listener, ...], bind: str) -> Listener | None:
    """The listener that keeps us from listening on `bind`, if there is one."""
    wanted = _plain(bind)
    for each in listeners:
        host = _plain(each.host)
        if host in _ANY or wanted in _ANY or host == wanted:
            return each
    return None


def _add(found: list[Listener], endpoint: str, port: int, pid: int | None, program: str) -> None:
    # "127.0.0.1:80", "[::1]:80", "*:80", "127.0.0.1%lo:80", and macOS' "127.0.0.1.80"
    match = re.fullmatch(r"(.{0,80})[:.](\d{1,5})", endpoint)
    if match and int(match[2]) == port:
        found.append(Listener(_plain(match[1]), port, pid, program[:100]))


def _plain(host: str) -> str:
    host = host.strip("[]").partition("%")[0]
    if host in ("", "*"):
        return "*"
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _from_hex(endpoint: str) -> str:
    """ "0100007F:1F90" as /proc/net/tcp has it (words in the byte order of a little-endian host)."""
    match = re.fullmatch(r"((?:[0-9A-Fa-f]{8}){1,4}):([0-9A-Fa-f]{4})", endpoint)
    if not match:
        return ""
    packed = b"".join(bytes.fromhex(match[1][i:i + 8])[::-1] for i in range(0, len(match[1]), 8))
    if len(packed) not in (4, 16):
        return ""
    return f"[{ipaddress.ip_address(packed)}]:{int(match[2], 16)}"
