"""The cockpit's screens: a line here is a key, a mode of the app and a command of the palette."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from app.screens.base import CockpitScreen


@dataclass(frozen=True, slots=True)
class Room:
    """One screen of the cockpit, made when it is first gone to."""

    key: str                      # the number stays the same whatever other screens there are
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


def _proxy() -> CockpitScreen:
    from app.screens.proxy import ProxyScreen
    return ProxyScreen()


def _swarm() -> CockpitScreen:
    from app.screens.swarm import SwarmScreen
    return SwarmScreen()


ROOMS = (
    Room("1", "fleet", "Fleet", _fleet),
    Room("2", "split", "Split", _split),
    Room("3", "models", "Models", _models),
    Room("4", "proxy", "Proxy", _proxy),
    Room("6", "swarm", "Swarm", _swarm),
)


def bindings() -> list[BindingType]:
    """A number key for every room."""
    return [Binding(room.key, f"room('{room.name}')", room.title, show=False, id=f"room.{room.name}",
                    tooltip=f"The {room.title} screen") for room in ROOMS]
