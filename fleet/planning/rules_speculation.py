"""Rules about speculation. Each function finds what stands against one row of `rules.RULES`."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.experts.passes import USUAL_OVERLAP, break_even, judge_ratio, union_from_overlap
from fleet.planning.situation import Level, Situation
from fleet.planning.speculation_modes import MODES, OFF, Drafts, Mode, OverRpc, mode_of

Found = Iterator[tuple[Level, str, str]]


def _modes(situation: Situation) -> tuple[str, ...]:
    return tuple(mode for mode in situation.speculating.modes if mode != OFF)


def _rows(situation: Situation) -> Iterator[Mode]:
    for name in _modes(situation):
        if (mode := mode_of(name)) is not None:
            yield mode


def known_mode(situation: Situation) -> Found:
    """By what the build's help lists; a build that lists nothing is asked for what the table has."""
    known = situation.speculating.known_modes
    for name in _modes(situation):
        if known and name not in known:
            yield (Level.REFUSAL, f"The llama-server on {situation.head.node} does not know {name}, the way to "
                   "speculate that was asked for.", f"It knows {', '.join(known)}; newer builds know more.")
        elif not known and mode_of(name) is None:
            yield (Level.WARNING, f"{name} is no way to speculate that Quarterdeck has facts about.",
                   f"It has them of {', '.join(mode.name for mode in MODES)}.")


def has_drafter(situation: Situation) -> Found:
    """A draft model, or draft layers in the file."""
    asked = situation.speculating
    for mode in _rows(situation):
        if asked.draft_model or mode.drafts is Drafts.TOKENS:
            continue
        if mode.drafts is Drafts.HEAD:
            if situation.model.draft_head is False:
                yield (Level.REFUSAL, f"{mode.name} drafts with {mode.drafts.value}, and the model has none.",
                       "Take a GGUF file that was made with them, or name theirs with -md.")
            continue
        yield (Level.REFUSAL, f"{mode.name} drafts with {mode.drafts.value}, and none was named.",
               "Name its file with -md.")


def draft_is_used(situation: Situation) -> Found:
    """-md alone loads a second model, and that is all that it does."""
    asked = situation.speculating
    drafting = [mode for mode in _rows(situation) if mode.drafts is not Drafts.TOKENS]
    unknown = [name for name in _modes(situation) if mode_of(name) is None]
    if asked.draft_model and asked.has_modes and not drafting and not unknown:
        yield (Level.REFUSAL, f"{asked.draft_model} would be loaded to draft, and never asked for a draft.",
               "Say which way: `--spec-type draft-simple` beside -md.")


def works_over_rpc(situation: Situation) -> Found:
    """Only what has layers on workers is in question."""
    if not situation.workers:
        return
    for mode in _rows(situation):
        if mode.over_rpc is OverRpc.WORKS:
            continue
        word = "is unproven" if mode.over_rpc is OverRpc.UNPROVEN else "was reported to crash"
        yield (Level.WARNING, f"{mode.name} {word} over RPC. {mode.note}".strip(),
               "Try it before it serves; draft-simple and ngram-mod were run over RPC.")


def one_at_a_time(situation: Situation) -> Found:
    """A pass over several tokens reads the union of their experts, and a draft never saves a read."""
    streamed, modes = situation.streamed, _modes(situation)
    if streamed is None or not (modes or streamed.outside):
        return
    overlap = USUAL_OVERLAP if streamed.overlap is None else streamed.overlap
    seen = "is usual" if streamed.overlap is None else "was seen"
    experts = union_from_overlap(1, overlap, streamed.width)
    if streamed.acceptance is not None and not judge_ratio(experts, streamed.acceptance, width=streamed.width).loses:
        return
    found = "" if streamed.acceptance is None else f", and {streamed.acceptance:.2f} were seen"
    what = ", ".join(modes) if modes else "Drafts from in front of the head"
    yield (Level.WARNING, f"{what}: speculation is advised against, as the experts are read from disk. A pass over "
           f"{streamed.width} tokens reads {experts:.2f} times the experts of one where neighbours share "
           f"{overlap:.2f} of them, as {seen}; with fewer than {break_even(overlap):.2f} of the drafts right it loses"
           f"{found}, and no draft saves a read.",
           "Leave it out, or see with `quarterdeck experts simulate TRACE --acceptance A` what it would do.")


def none_in_a_pipeline(situation: Situation) -> Found:
    """vLLM's own reason: the stage that samples tells the others one token a request, a draft makes it several."""
    modes = _modes(situation)
    if modes and situation.workers:
        yield (Level.REFUSAL, f"vLLM cannot be relied on to speculate ({', '.join(modes)}) in a pipeline over "
               "machines: the last stage hands one sampled token a request to the others, a draft makes several, and "
               "a drafter reads hidden states that most models do not pass from stage to stage.",
               "Leave speculation out, or run the model on one machine.")
