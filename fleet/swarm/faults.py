"""The errors of fleet/node, which knows nothing of the rest of Quarterdeck, as errors for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fleet.errors import FleetError
from fleet.node.trouble import BUSY, GONE, MISSING, NONSENSE, REFUSED, SLOW, PeerFailed, SwarmError

_REMEDIES = {
    REFUSED: "Give its token with --token-file, and see that this machine is among those that it allows.",
    GONE: "See that a seeder runs there, and that its port can be reached from here.",
    SLOW: "See that a seeder runs there, and that its port can be reached from here.",
    BUSY: "Try again in a moment.",
    MISSING: "See that the URL is a seeder's: http://HOST:9080.",
    NONSENSE: "See that the URL is a seeder's: http://HOST:9080.",
}


class SwarmFault(FleetError):
    """A model could not be hashed, given away or fetched; `code` is the SwarmError's."""

    code = "swarm"


@contextmanager
def told_to_people() -> Iterator[None]:
    """Inside of the block a SwarmError becomes a SwarmFault."""
    try:
        yield
    except SwarmError as error:
        raise fault_of(error) from error


def fault_of(error: SwarmError) -> SwarmFault:
    """The same with a remedy: a node that is asked by machines needs none, a person does."""
    remedy = error.remedy or (_REMEDIES.get(error.kind, "") if isinstance(error, PeerFailed) else "")
    return SwarmFault(error.what, remedy, code=error.code)
