"""What a mixture of experts needs of a budget of main memory, and what is left of it for experts. Pure; bytes.

The page cache is the cache of experts: it has what the budget leaves beside what is always needed. A token goes through
`used` experts of every layer before it comes to the first layer again. So a cache that holds less than that (one token
cycle) has dropped every expert by the time that it may be asked for again, and hits exactly nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import PlanRefused
from fleet.experts.layout import Layout
from fleet.models.header import GgufHeader
from fleet.models.memory import Ask, compute_bytes, kv_by_layer, output_bytes

SERVER = 32 << 20            # bytes that llama-server takes besides: measured 5 to 6 MiB, and its page tables
TOKEN = 200                  # bytes a token of the vocabulary: measured 190 for 262 144 tokens
CYCLES = 2                   # token cycles that are the least to be sensible
TOO_SMALL = "budget"         # code of a refusal


@dataclass(frozen=True, slots=True)
class Needs:
    """What one model with its context takes."""

    shared: int              # weights that every token needs
    cache: int               # of the context: KV
    buffers: int             # what is computed with, logits, the server itself
    prompts: int             # that the server may keep of old prompts (--cache-ram)
    token: int               # experts of one token: a token cycle
    experts: int             # of all

    @property
    def fixed(self) -> int:
        """All but experts."""
        return self.shared + self.cache + self.buffers + self.prompts

    @property
    def least(self) -> int:
        """Below this nothing is ever hit."""
        return self.fixed + self.token

    @property
    def sensible(self) -> int:
        """The smallest budget that is worth it."""
        return self.fixed + CYCLES * self.token

    @property
    def whole(self) -> int:
        """From here on everything stays in memory."""
        return self.fixed + self.experts

    def room(self, budget: int) -> int:
        """Bytes that are left for experts, not more than there are."""
        return max(0, min(self.experts, budget - self.fixed))


def needs_of(header: GgufHeader, layout: Layout, ask: Ask, *, prompts: int = 0) -> Needs:
    """What a model takes, run by one server on its processor alone."""
    compute = compute_bytes(header, ask, range(header.n_layers + 1))
    server = SERVER + TOKEN * (header.n_vocab or 0)
    return Needs(layout.shared_bytes, sum(kv_by_layer(header, ask)), compute + output_bytes(header, ask) + server,
                 prompts, layout.experts.token_bytes, layout.experts.bytes)


def judge_budget(needs: Needs, budget: int, model: str) -> tuple[str, ...]:
    """What to know of a budget, in sentences.

    Raises:
        PlanRefused: less than one token cycle is left for experts.
    """
    parts = (f"{_size(needs.shared)} of weights that every token needs, {_size(needs.cache)} of context, "
             f"{_size(needs.buffers + needs.prompts)} of buffers")
    if budget < needs.least:
        raise PlanRefused(
            f"{model} cannot run in {_size(budget)}: beside {parts} its experts need {_size(needs.token)} for one "
            "token alone, and with less each is dropped before it is asked for again: not one would ever be hit.",
            f"Give it {_size(needs.sensible)} or more (`experts: {{budget: ...}}`), a smaller context, or a KV type of "
            "fewer bytes.", code=TOO_SMALL)
    room = needs.room(budget)
    if room == needs.experts:
        return (f"{model} fits into {_size(budget)} whole: nothing has to be streamed, and without `experts:` it "
                "would be placed like every other model.",)
    told = (f"{_size(budget)} hold {parts}, and {_size(room)} of {_size(needs.experts)} of experts "
            f"({100 * room // needs.experts} %, {room / needs.token:.1f} token cycles).")
    if budget < needs.sensible:
        return (told, f"That is less than {CYCLES} token cycles: hardly any expert will be hit. The smallest sensible "
                      f"budget is {_size(needs.sensible)}.")
    return (told,)


def _size(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{-(-count // 1024**2)} MiB"
