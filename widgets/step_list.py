"""The steps of a plan as it runs, scrolled to where it is."""

from __future__ import annotations

from collections.abc import Sequence

from widgets.entries import Entry
from widgets.entry_view import EntryView
from widgets.steps import StepEntry


class StepList(EntryView):
    """A plan that runs, scrolled so that the current step is seen."""

    def show_steps(self, before: Sequence[Entry], steps: Sequence[StepEntry]) -> None:
        """What stands above, then the steps; scrolled so that the current one is seen with one after it."""
        self.show((*before, *steps))
        current = [index for index, step in enumerate(steps) if step.current]
        height = max(self.size.height, 1)
        if current:
            width = self.scrollable_content_region.width
            at = sum(len(entry.lines(width)) for entry in (*before, *steps[:current[-1]])) if width else 0
            if not self.scroll_offset.y <= at < self.scroll_offset.y + height - 1:
                self.go_to(max(at - height + 2, 0))
        elif self.scroll_offset.y:
            self.go_to(0)
