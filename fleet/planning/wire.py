"""Flags of a head that decide what a split costs on a network. Pure.

Each of them saves round trips and gives something up, so each is chosen by link, model and build, with its reason.
Measured in a lab of real hosts with llama.cpp b10068 and gemma-3-270m (`tests/bench/wire.py`; the figures stand in
CONTRIBUTING.md):

- Context checkpoints read a sliding window's state back from the workers at every request, in two passes and many
  small reads one after another: the second turn of a conversation began after 2.6 s at 10 ms, without them after 0.7.
  `-ctxcp 0` ends that; without `--swa-full` it makes every rollback process the whole prompt again, so both go
  together or not at all.
- Prompt-cache saves (`-cram`) move a slot's whole state over the wire: off with workers, see `llama_server`.
- The output matrix on a worker sends n_vocab x 4 bytes back for every token, 1 MB with a vocabulary of 262,144; on the
  head's processor the head does that work itself.
- With flash attention b10068 asks a worker for allocation sizes at every new shape of a batch, some 108 round trips a
  request; b11434 remembers the answers. Without it a second turn began after 0.12 s in place of 0.66 at 10 ms, but a
  prompt of 2,000 new tokens took 20 s in place of 12. A saving for short prompts alone, so it stays on where the
  context is large enough for long ones. Nor can V be quantised without it. Alone, with checkpoints on, it is a trap:
  the prompt of one request took 41 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.model import Link
from fleet.models.attention import Kind, attention_of
from fleet.models.gguf import GgufHeader
from fleet.planning.situation import option
from fleet.runtimes.binaries import Flags

CHECKPOINT_TRIPS = 100         # round trips a request that checkpoints cost on a windowed model: 25 to 61 reads a pass,
                               # two passes; 2.6 s became 0.7 s at 10 ms, the logits' part included
ALLOCATION_TRIPS = 108         # round trips a request that flash attention costs in builds that do not remember sizes
WORTH = 0.050                  # seconds a request that have to be saved before something is given up for it
WORTH_A_TOKEN = 0.001          # seconds a token
FLASH_WORTH = 0.500            # seconds a request: long prompts pay for it
SHORT_CONTEXT = 4096           # tokens: larger ones are for long prompts, which flash attention is faster at
UNQUANTISED = ("", "f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class WireChoice:
    """Arguments for llama-server, and a sentence for each of them: what it saves and what it gives up."""

    argv: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    output_on_head: bool = False       # the output matrix is kept in the head's main memory


def wire_flags(header: GgufHeader, links: Sequence[Link], flags: Flags, *, given: Sequence[str] = (),
               kv_type_v: str = "", flash_attention: str = "", context: int | None = None,
               output_on_head: bool | None = None, room_for_full_window: bool = True) -> WireChoice:
    """Choose the flags for a head whose workers are behind `links`; none without workers.

    Args:
        flags: of that llama-server: a flag that it does not have is not chosen.
        given: the user's own arguments for it. What they decide is left to them.
        kv_type_v: of the cache, "" = f16. A quantised V needs flash attention.
        flash_attention: the user's own word, "" = none.
        context: tokens, None = not known.
        output_on_head: what the planner decided on; None = by what the link makes of it.
        room_for_full_window: whether a full-size cache for windowed layers fits (`--swa-full`).
    """
    if not links:
        return WireChoice()
    round_trip = max(link.round_trip for link in links)
    argv: list[str] = []
    reasons: list[str] = []
    quiet = _checkpoints(header, round_trip, flags, given, room_for_full_window, argv, reasons)
    moved = _output(header, links, flags, given, output_on_head, argv, reasons)
    if quiet and not flash_attention and (kv_type_v or option(given, "-ctv", "--cache-type-v") or "") in UNQUANTISED:
        _flash_attention(round_trip, flags, given, context, argv, reasons)
    return WireChoice(tuple(argv), tuple(reasons), moved)


def _checkpoints(header: GgufHeader, round_trip: float, flags: Flags, given: Sequence[str], room: bool,
                 argv: list[str], reasons: list[str]) -> bool:
    """Whether no checkpoints are made: because they are switched off, or because this model needs none."""
    kinds = {layer.kind for layer in attention_of(header)} | (
        {Kind.RECURRENT} if any(layer.state_bytes for layer in attention_of(header)) else set())
    names = ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints")
    if any(argument in given for argument in (*names, "--swa-full")):
        return "--swa-full" in given and option(given, *names) == "0"
    if Kind.RECURRENT in kinds:        # its state cannot be rolled back in any other way
        return False
    if Kind.SLIDING not in kinds:
        return True
    name, saved = flags.first(*names), CHECKPOINT_TRIPS * round_trip
    if name is None or flags.find("--swa-full") is None or saved < WORTH or not room:
        return False
    argv += [name, "0", "--swa-full"]
    reasons.append(f"No context checkpoints ({name} 0 --swa-full): saves about {saved * 1000:.0f} ms a request. The "
                   "cache of windowed layers takes the memory of the whole context.")
    return True


def _output(header: GgufHeader, links: Sequence[Link], flags: Flags, given: Sequence[str], wanted: bool | None,
            argv: list[str], reasons: list[str]) -> bool:
    names = ("-ot", "--override-tensor")
    name = flags.first(*names)
    if name is None or any(argument in given for argument in names):
        return False
    logits = 4 * (header.n_vocab or 0)
    link = links[-1]
    saved = logits / link.bytes_per_second if link.bytes_per_second > 0 else 0.0
    if not (saved >= WORTH_A_TOKEN if wanted is None else wanted):
        return False
    # Anchored: llama.cpp searches the pattern in every tensor's name, and each layer has an attn_output.weight.
    tensor = "token_embd" if header.tied_output else "output"
    argv += [name, rf"^{tensor}\.weight$=CPU"]
    reasons.append(f"The output matrix stays on the head: {logits} bytes a token do not cross the network "
                   f"({saved * 1000:.1f} ms). The head's processor does that work.")
    return True


def _flash_attention(round_trip: float, flags: Flags, given: Sequence[str], context: int | None,
                     argv: list[str], reasons: list[str]) -> None:
    names = ("-fa", "--flash-attn")
    name, saved = flags.first(*names), ALLOCATION_TRIPS * round_trip
    if name is None or not flags.takes_value(name) or any(argument in given for argument in names):
        return
    if remembers_sizes(flags) or saved < FLASH_WORTH or context is None or context > SHORT_CONTEXT:
        return
    argv += [name, "off"]
    reasons.append(f"No flash attention ({name} off): saves about {saved * 1000:.0f} ms a request with this build. "
                   "Long prompts take longer to compute, and V cannot be quantised.")


def remembers_sizes(flags: Flags) -> bool:
    """Whether this build asks a worker once for an allocation's size. b11434 does, b10068 does not; which build was
    the first is not known, so the option that came between them (`-lm`) stands for it."""
    return flags.find("-lm") is not None or flags.find("--load-mode") is not None
