"""What a Quarterdeck that died left half done: gone on with, or gone back, as fleet.yaml or a person says."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from fleet.config.schema import RecoverPolicy
from fleet.desk import QuestionDesk
from fleet.model import QuestionKind, Severity
from fleet.operations.journal import Journal, LeftBehind
from fleet.recovery.driver import Note, Watched

GO_ON, GO_BACK = "go on", "go back"
SETTLED_WITHIN = 20.0    # seconds: nodes have to be read before anything can be planned


async def finish(engine: Watched, journal: Journal, desk: QuestionDesk, note: Note,
                 settled: Callable[[float], Awaitable[bool]]) -> None:
    """See to what was left behind, the latest first; of several only that counts, the others are forgotten."""
    left = journal.left_behind()
    if not left:
        return
    await settled(SETTLED_WITHIN)
    first, *others = left
    answer = await _decide(engine, first, desk, note)
    for each in (first, *others):
        journal.forget(each)
    command = {GO_ON: first.command, GO_BACK: first.back}.get(answer or "")
    if command is not None:
        await engine.outcome(engine.submit(command))


async def _decide(engine: Watched, left: LeftBehind, desk: QuestionDesk, note: Note) -> str | None:
    where = f" at “{left.step}”" if left.step else ""
    when = time.strftime("%H:%M", time.localtime(left.at_epoch))
    what = f"A Quarterdeck that ended at {when} left this half done: {left.title}{where}."
    match engine.config.recover:
        case RecoverPolicy.AUTO:
            note(Severity.WARNING, f"{what} It is gone on with.")
            return GO_ON
        case RecoverPolicy.ASK:
            back = f", or back to {left.before}" if left.before else ", or take down what was begun"
            answer = await desk.ask(QuestionKind.UNFINISHED, "", f"{what} Go on with it{back if left.back else ''}?",
                                    left.before)
            if answer is None:
                note(Severity.WARNING, f"{what} It stays as it is; `quarterdeck resume` goes on with it.")
            return answer
    note(Severity.WARNING, f"{what} It stays as it is.")
    return None
