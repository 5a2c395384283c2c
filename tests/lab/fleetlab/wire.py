"""A slow or lossy cable: one process that carries frames between two TAP interfaces.

Made by hand because not every kernel has netem. Whole TCP segments of 64 kB are carried, so Python is
fast enough for 2 to 3 Gbit/s; it runs with real-time priority, to be in time when llama.cpp has all cores.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import signal
import sys
import time
from collections import deque
from contextlib import suppress

from .base import DIR

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP_NO_PI_VNET_HDR = b"\x02\x50"
_CHECKSUM_AND_TSO = 0x01 | 0x02 | 0x04 | 0x08
_MOST_IN_FLIGHT = 64 << 20   # bytes; more is dropped at the tail


def tap(device: str) -> int:
    """Open a TAP interface so that it carries whole TCP segments."""
    opened = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(opened, _TUNSETIFF, device.encode().ljust(16, b"\0") + _TAP_NO_PI_VNET_HDR + bytes(22))
    fcntl.ioctl(opened, _TUNSETOFFLOAD, _CHECKSUM_AND_TSO)
    return opened


class Wire:
    """Frames to the node go at once, those from it late by the delay; some are lost each way."""

    def __init__(self, name: str) -> None:
        self._file = DIR / f"wire-{name}.json"
        self._near, self._far = (tap(name.replace("fl-", f"{prefix}-")) for prefix in ("flx", "flw"))
        self._late: deque[tuple[float, bytes]] = deque()   # a constant delay keeps the order
        self._bytes = 0
        self.configure()

    def configure(self, *_: object) -> None:
        """Read delay (s) and loss (fraction) anew."""
        self._delay, self._loss = json.loads(self._file.read_text())

    def carry(self) -> None:
        """For ever."""
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else 1.0
            for ready in select.select([self._near, self._far], [], [], wait)[0]:
                with suppress(OSError):   # nothing more to read
                    for _ in range(64):
                        self._take(ready, os.read(ready, 70000))
            while self._late and self._late[0][0] <= time.monotonic():
                frame = self._late.popleft()[1]
                self._bytes -= len(frame)
                with suppress(OSError):   # that side is down: the frame is lost, as on a cable
                    os.write(self._far, frame)

    def _take(self, side: int, frame: bytes) -> None:
        if self._loss and random.random() < self._loss:
            return
        if side == self._far:
            os.write(self._near, frame)
        elif self._bytes < _MOST_IN_FLIGHT:
            self._late.append((time.monotonic() + self._delay, frame))
            self._bytes += len(frame)


if __name__ == "__main__":
    wire = Wire(sys.argv[1])
    signal.signal(signal.SIGHUP, wire.configure)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    wire.carry()
