"""What the compatibility rules say of a split that is only planned. Pure.

Before a bring-up they are asked again, with what was then read of builds, protocols and addresses.
"""

from __future__ import annotations

from fleet.model import LinkKind
from fleet.models.gguf import GgufHeader
from fleet.planning.choose import Choice
from fleet.planning.planned import Split
from fleet.planning.rules import judge, refusals, warnings
from fleet.planning.situation import Place, Runtime, Situation, Speculating, Verdict
from fleet.planning.traits import traits_of


def verdicts_of(choice: Choice, split: Split, header: GgufHeader) -> tuple[Verdict, ...]:
    """What stands against the split, and what a person should know of it."""
    workers = []
    for number in split.workers:
        worker = choice.workers[number]
        held = [h for h in split.used if h.room.worker == number]
        link = held[0].room.link
        workers.append(Place(worker.node.name, worker.config.port, binary=worker.binary,
                             managed=worker.config.managed, link=link.kind if link else LinkKind.UNKNOWN,
                             devices=len(held)))
    model, draft = choice.model, choice.model.draft
    verdicts = judge(Situation(
        Runtime.LLAMA, Place(choice.head.name, binary=choice.head_binary, bind="127.0.0.1"), tuple(workers),
        local_devices=sum(1 for h in split.used if h.room.worker is None), model=traits_of(header),
        shares=len(split.used), kv_type_k=model.kv_type_k, kv_type_v=model.kv_type_v,
        flash_attention=model.flash_attention, slots=model.slots,
        speculating=Speculating(tuple(draft.mode.split(",")), draft.file) if draft else Speculating()))
    return (*refusals(verdicts), *warnings(verdicts))
