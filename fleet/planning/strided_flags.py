"""Flags of a head whose continuations are asked for several at once (`fleet.speculation`). Pure.

Each is there because of what b10068 did without it:

- slots of their own for the prompts of a round, and `-kvu`: without one cache for all of them a round of 9 prompts took
  9 passes one after another in place of one.
- `--no-cache-idle-slots`: with one cache for all, idle slots are saved and cleared at each new task, and every prompt
  was evaluated anew in full, 8 times 150 tokens a round.
- `--swa-full` with `-ctxcp 0` for windowed models: otherwise a slot cannot go back to an earlier token, and what was
  read is read again.
- `-fa off` over a network: with flash attention each shape of a batch that a worker has not seen is asked about some 28
  times, one after another, and rounds change their shape all the time: 2.6 s a round at 20 ms in place of 0.4. b11434
  remembers the answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.model import Link
from fleet.models.attention import Kind, attention_of
from fleet.models.gguf import GgufHeader
from fleet.planning.situation import option
from fleet.planning.wire import ALLOCATION_TRIPS, UNQUANTISED, WORTH, WireChoice, remembers_sizes
from fleet.runtimes.binaries import Flags

_CHECKPOINTS = ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints")


def strided_flags(header: GgufHeader, links: Sequence[Link], flags: Flags, wire: WireChoice, *,
                  given: Sequence[str] = (), kv_type_v: str = "", flash_attention: str = "",
                  room_for_full_window: bool = True) -> WireChoice:
    """What was chosen for the wire, and besides it what strided verification needs.

    Args:
        links: of the workers that are used.
        flags: of that llama-server: a flag that it does not have is not chosen.
        given: the user's own arguments for it. What they decide is left to them.
        kv_type_v: of the cache, "" = f16. A quantised V needs flash attention.
        flash_attention: the user's own word, "" = none.
        room_for_full_window: whether a full-size cache for windowed layers fits.
    """
    argv, reasons = list(wire.argv), list(wire.reasons)
    said = (*argv, *given)
    unified = flags.first("-kvu", "--kv-unified")
    if unified is not None and not {"-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"} & set(said):
        argv.append(unified)
        reasons.append(f"One cache for all slots ({unified}): the prompts of a round share a pass.")
    idle = "--no-cache-idle-slots"
    if flags.find(idle) is not None and not {"--cache-idle-slots", idle} & set(said):
        argv.append(idle)
        reasons.append(f"Idle slots keep what they have read ({idle}): the next round starts from it.")
    windowed = any(layer.kind is Kind.SLIDING for layer in attention_of(header))
    if windowed and room_for_full_window and flags.find("--swa-full") is not None and "--swa-full" not in said:
        name = flags.first(*_CHECKPOINTS)
        argv += [*([name, "0"] if name is not None and option(said, *_CHECKPOINTS) is None else []), "--swa-full"]
        reasons.append("A full cache for windowed layers (--swa-full): a slot can go back to any token.")
    _flash_attention(links, flags, said, kv_type_v, flash_attention, argv, reasons)
    return WireChoice(tuple(argv), tuple(reasons), wire.output_on_head)


def _flash_attention(links: Sequence[Link], flags: Flags, said: Sequence[str], kv_type_v: str, wanted: str,
                     argv: list[str], reasons: list[str]) -> None:
    name = flags.first("-fa", "--flash-attn")
    if not links or name is None or not flags.takes_value(name) or wanted or option(said, "-fa", "--flash-attn"):
        return
    if (kv_type_v or option(said, "-ctv", "--cache-type-v") or "") not in UNQUANTISED or remembers_sizes(flags):
        return
    saved = ALLOCATION_TRIPS * max(link.round_trip for link in links)
    if saved >= WORTH:
        argv += [name, "off"]
        reasons.append(f"No flash attention ({name} off): saves up to {saved * 1000:.0f} ms a round with this build. "
                       "Long prompts take longer to compute, and V cannot be quantised.")
