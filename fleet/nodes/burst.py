"""The way between two machines, measured by what they have: round trips of one byte, then a short burst.

Its text is given to the node's own python3 (3.9 or newer, `python3 -c`), so it imports nothing of ours. The worker's
node serves one connection, the head's node measures: just the path that RPC takes, and no connection of ours in it.
"""

from __future__ import annotations

import socket
import sys
import time

LIFETIME = 4.0          # seconds that a server waits for its one visitor
CONNECT = 1.0           # seconds
TRIPS = 9               # round trips; the first one is not counted
MOST = 4 << 20          # bytes of a burst
LONGEST = 0.4           # seconds of a burst: a slow link sends less of it
BLOCK = 1 << 16


def serve(host: str) -> None:
    """Say the port, answer byte for byte, send zeros when told to go, end."""
    with socket.socket() as listener:
        listener.settimeout(LIFETIME)
        listener.bind((host, 0))
        listener.listen(1)
        print(f"port {listener.getsockname()[1]}", flush=True)
        visitor, _ = listener.accept()
    with visitor:
        visitor.settimeout(LIFETIME)
        visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            word = visitor.recv(1)
            if word == b"g":
                break
            if not word:
                return
            visitor.sendall(word)
        block, left = bytes(BLOCK), MOST
        until = time.monotonic() + 2 * LONGEST
        while left > 0 and time.monotonic() < until:
            visitor.sendall(block)
            left -= len(block)


def measure(host: str, port: int) -> tuple[float, float]:
    """Seconds of a round trip (median), and bytes a second of the later part of a burst."""
    with socket.create_connection((host, port), CONNECT) as way:
        way.settimeout(CONNECT)
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(TRIPS):
            begun = time.monotonic()
            way.sendall(b".")
            if not way.recv(1):
                raise OSError("it hung up")
            trips.append(time.monotonic() - begun)
        way.sendall(b"g")
        return sorted(trips[1:])[len(trips[1:]) // 2], _rate(way)


def _rate(way: socket.socket) -> float:
    """The first quarter opens the window and is not counted, where the burst came so far."""
    begun = time.monotonic()
    received, marks = 0, []
    while received < MOST and time.monotonic() < begun + LONGEST:
        data = way.recv(1 << 18)
        if not data:
            break
        received += len(data)
        marks.append((time.monotonic(), received))
    if not marks:
        return 0.0
    first = next(mark for mark in marks if mark[1] >= received // 4)
    if len(marks) < 4 or first is marks[-1]:
        first = (begun, 0)
    return (marks[-1][1] - first[1]) / max(1e-6, marks[-1][0] - first[0])


def main(words: list[str]) -> None:
    """`serve HOST`, or `measure HOST PORT [HOST PORT ...]`: a line for each, one after another."""
    if words[0] == "serve":
        serve(words[1])
        return
    places = iter(words[1:])
    for host in places:
        port = next(places)
        try:
            trip, rate = measure(host, int(port))
            print(f"way {trip:.9f} {rate:.0f}", flush=True)
        except OSError as error:
            print(f"none {error.strerror or error}", flush=True)


if __name__ == "__main__" and len(sys.argv) > 1:
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"{error.strerror or error}")
