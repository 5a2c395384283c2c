"""Messages between the engine's bridge and the screens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from fleet.model import Snapshot


@dataclass
class SnapshotChanged(Message):
    """What the engine knows now. A newer one replaces one that still waits: latest wins."""

    snapshot: Snapshot
    now: float                     # engine clock, when it was taken

    def can_replace(self, message: Message) -> bool:
        """A state that nobody has seen yet is worth nothing once there is a newer one."""
        return isinstance(message, SnapshotChanged)


@dataclass
class EngineFailed(Message):
    """The engine could not be made, or has ended by itself."""

    what: str
    remedy: str


@dataclass
class CommandRefused(Message):
    """The engine did not take a command."""

    what: str
