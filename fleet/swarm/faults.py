"""The errors of fleet/node, which knows nothing of the rest of Quarterdeck, as errors for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fleet.errors import FleetError
from fleet.node.trouble import SwarmError


class SwarmFault(FleetError):
    """A model could not be hashed, given away or fetched; `code` is the SwarmError's."""

    code = "swarm"


@contextmanager
def told_to_people() -> Iterator[None]:
    """Inside of the block a SwarmError becomes a SwarmFault."""
    try:
        yield
    except SwarmError as error:
        raise SwarmFault(error.what, error.remedy, code=error.code) from error
