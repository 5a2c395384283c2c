"""A proposal for what the fleet looks like now: the model's header is read, nothing is started or stopped."""

from __future__ import annotations

import asyncio

from fleet.operations.hands import Hands, Known
from fleet.operations.preflight import at_home
from fleet.planning.choose import choose, node_config
from fleet.planning.propose import Proposal, WhatIf, propose, what_if_config


async def propose_now(hands: Hands, known: Known, wanted: str, what_if: WhatIf) -> Proposal:
    """What bringing `wanted` up would put where, with the changes of `what_if`.

    Raises:
        PlanRefused: no such model or node, or no head.
        FleetError: the head does not answer, or its file is no model.
    """
    config, name = what_if_config(hands.snapshot(), hands.config, wanted, what_if)
    choice = choose(hands.snapshot(), config, name)
    choice, _ = await at_home(hands, choice, node_config(config, choice.head))
    header = await known.headers.model_of(hands.transport(choice.head.name), choice.model.file)
    flags = await known.flags_of(hands, choice.head.name, choice.head_binary)
    # Fifteen devices and 126 layers take two seconds with all suggestions: the engine goes on meanwhile.
    return await asyncio.to_thread(propose, hands.snapshot(), config, header, name, what_if, flags=flags)
