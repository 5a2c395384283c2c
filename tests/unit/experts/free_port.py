"""A port that nobody has."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One of loopback, free when it was looked at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
