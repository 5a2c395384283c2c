"""Which Quarterdeck this is."""

from __future__ import annotations


def version() -> str:
    """The installed distribution's version, or "unknown" where it is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as read

    try:
        return read("quarterdeck")
    except PackageNotFoundError:
        return "unknown"
