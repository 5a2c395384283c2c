"""Whether a file of this machine is one that we may obey: what it says is run, or decides whom we trust."""

from __future__ import annotations

import os
import stat


def why_not_ours(found: os.stat_result) -> str:
    """Why a file must not be obeyed: another user could have written it. "" when all is well.

    Ours, root's, and, under sudo, those of the user who called it count. A group may write where it is our own one,
    as with a umask of 002.
    """
    if found.st_uid not in _trusted():
        return "it belongs to another user"
    if found.st_mode & stat.S_IWOTH:
        return "everybody may write to it"
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid()) and found.st_gid != _sudo("SUDO_GID"):
        return "other users may write to it, by its group"
    return ""


def _trusted() -> set[int]:
    caller = _sudo("SUDO_UID")
    return {0, os.geteuid()} | ({caller} if caller is not None else set())


def _sudo(name: str) -> int | None:
    """Who called sudo; believed only by root, whose environment sudo made."""
    said = os.environ.get(name, "")
    return int(said) if os.geteuid() == 0 and said.isascii() and said.isdigit() and len(said) < 11 else None
