"""The cockpit's screens: a line here is a key (1, 2 ...), a mode of the app and a command of the palette."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from app.screens.base import CockpitScreen


@dataclass(frozen=True, slots=True)
class Room:
    """One screen of the cockpit, made when it is first gone to."""

    name: str
    title: str
    make: Callable[[], CockpitScreen]


def _fleet() -> CockpitScreen:
    from app.screens.fleet import FleetScreen
    return FleetScreen()


def _split() -> CockpitScreen:
    from app.screens.split import SplitScreen
    return SplitScreen()


def _models() -> CockpitScreen:
    from app.screens.models import ModelsScreen
    return ModelsScreen()


ROOMS = (
    Room("fleet", "Fleet", _fleet),
    Room("split", "Split", _split),
    Room("models", "Models", _models),
)


def bindings() -> list[BindingType]:
    """A number key for every room."""
    return [Binding(str(number), f"room('{room.name}')", room.title, show=False, id=f"room.{room.name}",
                    tooltip=f"The {room.title} screen") for number, room in enumerate(ROOMS, start=1)]
