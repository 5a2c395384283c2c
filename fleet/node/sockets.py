"""Sockets with time limits that the kernel keeps, so that one call can fill a whole buffer.

Python's own timeouts make a socket non-blocking, and a recv then returns what little is there.
SO_RCVTIMEO with MSG_WAITALL fills 1 MiB at a time, or gives what came within a second.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Callable

from .heads import MOST_HEAD, BadHead

TICK = 1.0                # seconds that one call may block: how soon a stop is noticed
BUFFER = 1 << 20          # bytes


class TimedOut(OSError):
    """Nothing came within the time."""


class Closed(OSError):
    """The other end closed, or said too little."""


def set_ticks(sock: socket.socket, seconds: float = TICK) -> None:
    """Every recv and send returns within `seconds`."""
    sock.settimeout(None)
    pair = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pair)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pair)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:   # no TCP (a socket pair in a test)
        return


class Line:
    """A connection's receiving side: heads first, then bodies; what came behind a head is kept for the next."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._kept = bytearray()
        set_ticks(sock)

    def head(self, idle: float, within: float, stopped: Callable[[], bool] = lambda: False) -> bytes | None:
        """The next head without its empty line; None when the other end closed between two.

        `idle` seconds until its first byte, `within` from there to its end. Errors: TimedOut, Closed, BadHead.
        """
        until = time.monotonic() + (within if self._kept else idle)
        begun = bool(self._kept)
        while True:
            end = self._kept.find(b"\r\n\r\n")
            if end >= 0:
                if end > MOST_HEAD:
                    raise BadHead("the head is too long")
                head = bytes(self._kept[:end])
                del self._kept[:end + 4]
                return head
            if len(self._kept) > MOST_HEAD:
                raise BadHead("the head is too long")
            if time.monotonic() > until or stopped():
                raise TimedOut("no head within its time")
            try:
                part = self.sock.recv(4096)
            except BlockingIOError:
                continue
            if not part:
                if self._kept:
                    raise Closed("closed within a head")
                return None
            self._kept += part
            if not begun:
                begun, until = True, time.monotonic() + within

    def receive(self, view: memoryview) -> int:
        """Up to len(view) bytes of body; 0 when a tick passed without any. Closed at the end of the stream."""
        if self._kept:
            count = min(len(view), len(self._kept))
            view[:count] = self._kept[:count]
            del self._kept[:count]
            return count
        try:
            count = self.sock.recv_into(view, len(view), socket.MSG_WAITALL)
        except BlockingIOError:
            return 0
        if count == 0:
            raise Closed("closed within a body")
        return count

    def body(self, length: int, within: float) -> bytes:
        """A short body of `length` bytes, all of it within the time."""
        buffer, got, until = bytearray(length), 0, time.monotonic() + within
        view = memoryview(buffer)
        while got < length:
            got += self.receive(view[got:])
            if got < length and time.monotonic() > until:
                raise TimedOut("no body within its time")
        return bytes(buffer)


def send_all(sock: socket.socket, data: bytes, within: float, more: bool = False) -> None:
    """Send everything within the time. `more` says that a body follows, so that both go in one packet."""
    view, until = memoryview(data), time.monotonic() + within
    flags = getattr(socket, "MSG_MORE", 0) if more else 0
    while view:
        try:
            view = view[sock.send(view, flags):]
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimedOut("the other end takes nothing") from None
