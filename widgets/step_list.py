"""The steps of a plan as it runs, scrolled to where it is."""

from __future__ import annotations

from collections.abc import Sequence

from widgets.entries import Entry
from widgets.entry_view import EntryView
from widgets.steps import StepEntry


class StepList(EntryView):
    """A plan that runs, scrolled so that the current step is seen."""

    def show_steps(self, before: Sequence[Entry], steps: Sequence[StepEntry], after: Sequence[Entry] = ()) -> None:
        """A title above, the steps, and what came of it below."""
        self.show((*before, *steps, *after))
        at = len(before)
        for index, step in enumerate(steps):
            if step.current:
                at = len(before) + index
        height = max(self.size.height, 1)
        if at >= self.scroll_offset.y + height - 1:
            self.go_to(at - height + 2)
