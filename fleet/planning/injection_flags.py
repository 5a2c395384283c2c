"""Flags of a head that takes drafts through its pool of n-grams (`fleet.speculation.injection`). Pure.

`ngram-mod` looks up the last n-match tokens of a stream and proposes what followed them in whatever any slot has read.
Its defaults (24 tokens that match, drafts of 48 and more) are for long texts that repeat themselves: an injected draft
of 8 tokens would never be proposed. Short matches propose wrongly now and then; the head rejects that in the same pass,
which is as much longer as the tokens take to compute. So where compute is dear the pool costs more than it gives:
measured with two workers (gemma-3-270m q4_k_m, two cores for everything) 0.6x of the head alone at 0 ms, 1.1x at 50 ms,
and there 2.3x on texts that repeat themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import PlanRefused
from fleet.planning.situation import option
from fleet.planning.wire import WireChoice
from fleet.runtimes.binaries import Flags

MATCH, SHORTEST, LONGEST = 6, 2, 16      # tokens: n-match, n-min and n-max
POOL_SHARE = 0.7           # of a token's time, that has to be network
_TYPE = "--spec-type"


def pool_pays(plain: float, network: float) -> bool:
    """Whether a head should have the pool where nobody said so.

    Args:
        plain: seconds of a token of the head alone.
        network: those of them that are round trips to workers.
    """
    return plain > 0 and network >= POOL_SHARE * plain


def has_pool(flags: Flags) -> bool:
    """Whether a llama-server knows the pool."""
    return flags.find(_TYPE) is not None and flags.find("--spec-ngram-mod-n-match") is not None


def injection_flags(flags: Flags, wire: WireChoice, *, given: Sequence[str] = ()) -> WireChoice:
    """What was chosen so far, and besides it the pool.

    Args:
        flags: of that llama-server.
        given: the user's own arguments for it. A way to speculate among them is left as it is.

    Raises:
        PlanRefused: the build has no such pool.
    """
    if option((*wire.argv, *given), _TYPE) is not None:
        return wire
    if not has_pool(flags):
        raise PlanRefused("The head's llama-server has no ngram-mod: drafts cannot be injected there.",
                          "Use a newer llama.cpp on the head, or `speculation: auto`.", code="no-such-flag")
    argv = (*wire.argv, _TYPE, "ngram-mod", "--spec-ngram-mod-n-match", str(MATCH), "--spec-ngram-mod-n-min",
            str(SHORTEST), "--spec-ngram-mod-n-max", str(LONGEST))
    return WireChoice(argv, (*wire.reasons, "A pool of n-grams that all slots share (--spec-type ngram-mod): what a "
                             "side request reads is drafted in the stream."), wire.output_on_head)
