"""What a machine is called: the configured name, else the ssh alias, else the mDNS host name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from fleet.discovery.grouping import Group
from fleet.discovery.sightings import Sighting, Source

ALIASES_KEPT = 16


def assign_names(groups: Sequence[Group]) -> list[tuple[str, tuple[str, ...]]]:
    """For each machine its node name, unique, and all its names, best first.

    Machines that count more choose first; a name that is taken is passed over for the machine's
    next one, and when all are taken a number is put behind the first.
    """
    taken: set[str] = set()
    named: list[tuple[str, tuple[str, ...]]] = []
    for group in groups:
        names = _names(group.sightings)
        free = (name for name in names if name not in taken)
        name = next(free, None) or next(numbered for place in count(2)
                                        if (numbered := f"{names[0]}-{place}") not in taken)
        taken.add(name)
        named.append((name, names[:ALIASES_KEPT]))
    return named


def _names(group: Sequence[Sighting]) -> tuple[str, ...]:
    first = [sighting.name for sighting in group]
    hosts = [sighting.host.rstrip(".") for sighting in group if sighting.source is Source.MDNS and sighting.host]
    return tuple(dict.fromkeys((*first, *hosts)))
