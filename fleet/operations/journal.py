"""What is being done to the fleet, on disk: who comes after a cockpit that died in the middle can go on, or go back.

One file an operation, written when it begins and at every step, taken away when it is over. Every Plan is made from
what the fleet looks like, so going on means to plan the same command again: what is done already is left alone.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.events import BringUp, Command, Distribute, RestartService, StartProxy, StartService, StopService, TearDown
from fleet.model import Deployment, DeploymentState, Operation, StepState
from fleet.operations.lease import is_dead, owner

COMMANDS: dict[str, type] = {kind.__name__: kind for kind in (
    BringUp, TearDown, StartService, StopService, RestartService, StartProxy, Distribute)}
FILE_LIMIT = 256 * 1024
MOST = 16
AT_WORK = (StepState.RUNNING, StepState.UNDOING)
SERVED = (DeploymentState.SERVING, DeploymentState.DEGRADED)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """An operation whose process died in the middle of it."""

    path: Path
    title: str
    step: str                     # that it was at
    command: Command
    before: str                   # model that served before; "" = none
    at_epoch: float

    @property
    def back(self) -> Command | None:
        """What makes it as it was before; None: there is no way back but going on."""
        if isinstance(self.command, BringUp):
            return BringUp(self.before, spare=True) if self.before else TearDown()
        return None


class Journal:
    """The files of one fleet in `folder`. Where they cannot be written nothing is lost but this."""

    def __init__(self, folder: Path, fleet: str) -> None:
        self._folder = folder
        self._fleet = re.sub(r"[^A-Za-z0-9_.]+", "_", fleet)[:40] or "fleet"
        self._written: dict[int, tuple[object, ...]] = {}

    def keep(self, operation: Operation, command: Command, before: Deployment, at_epoch: float) -> None:
        """Write down where an operation stands, if that is news."""
        if type(command).__name__ not in COMMANDS:
            return
        states = tuple(step.state for step in operation.steps)
        if self._written.get(operation.id) == states:
            return
        self._written[operation.id] = states
        said = {
            "owner": owner(), "title": operation.title, "at": at_epoch,
            "step": next((step.title for step in operation.steps if step.state in AT_WORK), ""),
            "command": {"kind": type(command).__name__, **asdict(command)},
            "before": before.model if before.state in SERVED else "",
        }
        path = self._path(operation.id)
        new = path.with_name(f".{path.name}")
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(said, file)
            new.replace(path)

    def over(self, number: int) -> None:
        """It is over: nothing is left to go on with."""
        if self._written.pop(number, None) is not None:
            with suppress(OSError):
                self._path(number).unlink(missing_ok=True)

    def left_behind(self) -> tuple[LeftBehind, ...]:
        """Operations of processes of this machine that died in the middle, the latest first."""
        found = []
        with suppress(OSError):
            for path in sorted(self._folder.glob(f"{self._fleet}-*.json"))[:MOST]:
                if (left := _read(path)) is not None:
                    found.append(left)
        return tuple(sorted(found, key=lambda left: -left.at_epoch))

    @staticmethod
    def forget(left: LeftBehind) -> None:
        """Somebody has decided about it."""
        with suppress(OSError):
            left.path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._fleet}-{os.getpid()}-{number}.json"


def _read(path: Path) -> LeftBehind | None:
    """None: torn, of somebody who lives, or of another Quarterdeck's making."""
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(FILE_LIMIT))
        if not is_dead(str(said["owner"])):
            return None
        given = dict(said["command"])
        kind = COMMANDS[given.pop("kind")]
        command = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
        return LeftBehind(path, str(said["title"])[:300], str(said["step"])[:300], command, str(said["before"])[:300],
                          float(said["at"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
