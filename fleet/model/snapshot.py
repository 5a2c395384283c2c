"""All that the engine knows, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.model.deployment import Deployment
from fleet.model.link import Link
from fleet.model.node import Node
from fleet.model.operation import Operation
from fleet.model.proxy import Proxy
from fleet.model.question import Question
from fleet.model.swarm import Swarm
from fleet.model.words import Problem, Severity


@dataclass(frozen=True, slots=True)
class Notice:
    """One line of the flight recorder."""

    at: float                             # engine clock
    at_epoch: float
    severity: Severity
    text: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the engine knows, at one moment."""

    fleet: str = "fleet"
    config_path: str = ""                 # "" = no file
    config_problems: tuple[str, ...] = ()  # the file as it is now is not in force because of these
    discovery: tuple[Problem, ...] = ()   # why a way of finding machines does not work
    nodes: Mapping[str, Node] = field(default_factory=dict)
    deployment: Deployment = Deployment()
    links: tuple[Link, ...] = ()          # one for each (head, worker) that was measured
    operations: tuple[Operation, ...] = ()   # newest last, the last 20
    questions: tuple[Question, ...] = ()
    notices: tuple[Notice, ...] = ()      # newest last, the last 200
    proxies: tuple[Proxy, ...] = ()
    swarms: tuple[Swarm, ...] = ()        # running ones and the last that ended, newest last
    other_cockpit: str = ""               # who acts on this fleet, so that we only look; "" = we may act
    refresh: float = 2.0                  # seconds between polls, to judge ages by

    def link(self, head: str, worker: str) -> Link | None:
        """The way between two nodes as last measured; None = it never was."""
        return next((link for link in self.links if (link.head, link.worker) == (head, worker)), None)
