"""What serves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.model.services import Placement
from fleet.model.words import Problem


class DeploymentState(StrEnum):
    """What is true of the model that the fleet serves."""

    DOWN = "down"
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    DEGRADED = "degraded"                 # answers, but not from where it was planned
    BROKEN = "broken"                     # a part is dead: the next request fails, or has failed
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model, its head and its workers, as observed; made from pid files, logs and sockets."""

    state: DeploymentState = DeploymentState.DOWN
    since: float = 0.0
    model: str = ""                       # name
    model_path: str = ""                  # on the head
    head: str = ""                        # node
    head_service: str = ""                # service id
    endpoint: str = ""                    # http://host:port that answers
    workers: tuple[tuple[str, str], ...] = ()   # (node, service id)
    context: int | None = None            # tokens
    placement: Placement = Placement()
    problem: Problem | None = None
    recent: tuple[str, ...] = ()          # models that were served before this one, the last one first
