"""A model whose head does not have its file yet: where a copy is, and what brings it there before anything changes."""

from __future__ import annotations

from fleet.errors import FleetError, ModelFileError
from fleet.events import BringUp, Distribute
from fleet.model import NodeState
from fleet.models.inventory import PlaceState, inventory
from fleet.operations.hands import Hands, Known
from fleet.operations.preflight import at_home
from fleet.planning.choose import choose, find_model, node_config

NO_FILE = "no-file"      # code of the error for a file that is not there


async def fetch_first(hands: Hands, known: Known, command: BringUp) -> Distribute | None:
    """What brings the file of a model to the head that fleet.yaml names for it.

    Only where that head has no such file and another node that is up has a whole one of the same name; None
    elsewhere, also where the model cannot be brought up for another reason: its plan says that.
    """
    snapshot = hands.snapshot()
    try:
        model = find_model(snapshot, hands.config, command.model)
        if not model.head:
            return None
        choice = choose(snapshot, hands.config, command.model)
        choice, _ = await at_home(hands, choice, node_config(hands.config, choice.head))
        await known.headers.model_of(hands.transport(choice.head.name), choice.model.file)
        return None
    except ModelFileError as error:
        if error.code != NO_FILE:
            return None
    except FleetError:
        return None
    folder, _, name = choice.model.file.rpartition("/")
    for found in inventory(snapshot.nodes):
        for place in found.places:
            if (place.state is PlaceState.COMPLETE and place.path.rpartition("/")[2] == name and folder
                    and place.node != choice.head.name and snapshot.nodes[place.node].state is NodeState.UP):
                return Distribute(f"{place.node}:{place.path}", (choice.head.name,), folder=folder)
    return None
