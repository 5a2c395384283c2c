"""Flags and memory of a draft model inside the head. Pure.

`-md` alone loads a second model and never asks it (b10068 and b11434), so `--spec-type` always goes with it. On a
worker's device each drafted token is a round trip, and its logits would come back whole, 1 MB with a vocabulary of
262,144; with the output matrix of the draft on the head 128 MB became 0.3 for 96 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.config.schema import DraftConfig
from fleet.errors import PlanRefused
from fleet.planning.rooms import Rooms
from fleet.planning.speculation_modes import Drafts, mode_of
from fleet.runtimes.binaries import Flags

ON_HEAD = "none"                # --spec-draft-device: the head's processor
KEEPS = 6                       # a draft model keeps and computes with about a sixth of its file besides: a small
                                # cache and its buffers, of 0.5B to 3B models with 8,192 tokens
_OUTPUT = r"token_embd\.weight=CPU"


def draft_words(draft: DraftConfig | None) -> tuple[str, ...]:
    """What the rules look at: the mode and the file, as arguments."""
    if draft is None:
        return ()
    return ("--spec-type", draft.mode, *(("-md", draft.file) if draft.file else ()))


def draft_flags(flags: Flags | None, draft: DraftConfig | None, devices: Mapping[str, str], *, head: str
                ) -> tuple[str, ...]:
    """Arguments for llama-server, () without a draft.

    Args:
        flags: of that llama-server; None = not read, then those of today's builds are taken.
        devices: the head's name ("RPC1") of the first device of each worker's node that takes part.
        head: its node.

    Raises:
        PlanRefused: the build cannot, or the node named takes no part.
    """
    if draft is None:
        return ()
    drafting = [mode.drafts for name in draft.mode.split(",") if (mode := mode_of(name.strip())) is not None]
    words = [_named(flags, "--spec-type"), draft.mode]
    if draft.file:
        device = _device(draft.device, devices, head)
        words += [_named(flags, "-md", "--spec-draft-model", "--model-draft"), draft.file,
                  _named(flags, "--spec-draft-device", "-devd", "--device-draft"), device]
        override = flags.first("-otd", "--spec-draft-override-tensor") if flags is not None else "-otd"
        if device.startswith("RPC") and override is not None:
            words += [override, _OUTPUT]
    if any(kind is not Drafts.TOKENS for kind in drafting):
        words += [_named(flags, "--spec-draft-n-max", "--draft-max"), str(draft.length)]
    return tuple(words)


def _device(wanted: str, devices: Mapping[str, str], head: str) -> str:
    if wanted in ("", head, ON_HEAD):
        return ON_HEAD
    if wanted in devices:
        return devices[wanted]
    if wanted.upper() == wanted or any(char.isdigit() for char in wanted[-2:]):
        return wanted                              # a device's own name; llama-server knows which there are
    raise PlanRefused(f"The draft model shall run on {wanted}, which is no worker that takes part.",
                      f"Name one of {', '.join(devices)}, or a device." if devices else "Name a device of the head.",
                      code="draft-device")


def _named(flags: Flags | None, *names: str) -> str:
    if flags is None:
        return names[0]
    if (name := flags.first(*names)) is None:
        raise PlanRefused(f"The head's llama-server has no {names[0]}: it cannot draft by itself.",
                          "Use a newer llama.cpp on the head, or leave `draft:` out.", code="no-such-flag")
    return name


def draft_bytes(size: int) -> int:
    """Bytes that a draft model of a file of that size takes where it runs: an estimate, see KEEPS."""
    return size + size // KEEPS


def with_draft(rooms: Rooms, draft: DraftConfig | None, size: int, *, names: Sequence[str] = ()) -> Rooms:
    """The rooms without what the draft model will take of one of them.

    Args:
        size: bytes of its file; 0 = not known, then nothing is taken.
        names: the head's name of each device, in order; () = RPC0, RPC1 ... for those of workers, else their own.
    """
    if draft is None or not draft.file or size <= 0:
        return rooms
    needed, number, devices, taken = draft_bytes(size), 0, [], False
    for position, room in enumerate(rooms.devices):
        name = names[position] if names else f"RPC{number}" if room.worker is not None else room.device
        number += room.worker is not None
        mine = not taken and draft.device in (name, room.node) and not (
            room.worker is None and draft.device == room.node)
        devices.append(replace(room, limit=max(0, room.limit - needed)) if mine else room)
        taken = taken or mine
    host = rooms.host if taken else replace(rooms.host, limit=max(0, rooms.host.limit - needed))
    return replace(rooms, host=host, devices=tuple(devices))
