"""Stop strings in a text that comes in parts, wherever the parts meet."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Keeps back what could still become a stop string. `found` once one is there: nothing more is taken then."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = ""
        self._stops = tuple(stop for stop in stops if stop)
        self._kept = ""

    def feed(self, part: str) -> str:
        """What of the text may go out now: all before the first stop string, and not what may be the start of one."""
        if not self._stops or self.found:
            return "" if self.found else part
        text = self._kept + part
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._kept = ""
            return text[:place]
        keep = max((_beginning_at_end(text, stop) for stop in self._stops), default=0)
        self._kept = text[len(text) - keep:]
        return text[:len(text) - keep]

    def rest(self) -> str:
        """What was kept back, when nothing more comes."""
        kept, self._kept = self._kept, ""
        return kept


def _beginning_at_end(text: str, stop: str) -> int:
    """Characters at the end of `text` that `stop` begins with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
