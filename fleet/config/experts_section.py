"""`experts:` of a model in fleet.yaml, and what does not go with it."""

from __future__ import annotations

from fleet.config.fields import boolean, size
from fleet.config.form import Form, Section
from fleet.config.marks import Mapping, Sequence
from fleet.config.schema import ExpertsConfig

EXPERTS_KEYS = ("budget", "shim")
SMALLEST_BUDGET = 16 << 20
ONE_MACHINE = ("split", "gpu_layers", "mode")      # of models that are dealt over devices


def experts(form: Form) -> ExpertsConfig | None:
    """The settings of one model."""
    if not form.written:
        return None
    section = Section(form, EXPERTS_KEYS, "a mapping with at least `budget`, for example {budget: 12GiB}")
    budget = size(section["budget"], None, SMALLEST_BUDGET)
    if isinstance(form.value, Mapping) and not section["budget"].written:
        form.wrong("'budget' is missing", "how much main memory it may take, for example `budget: 12GiB`")
    shim = boolean(section["shim"], True)
    return None if budget is None else ExpertsConfig(budget, shim)


def check_alone(section: Section) -> None:
    """Note what a model with a budget cannot have: it runs on one machine's processor."""
    if not section["experts"].written:
        return
    for key in ONE_MACHINE:
        if section[key].written:
            section[key].wrong(f"a model with `experts:` runs on one machine's processor and knows no `{key}`",
                               f"either `experts:` or `{key}`")
    workers = section["workers"]
    if workers.written and not (isinstance(workers.value, Sequence) and not workers.value.items):
        workers.wrong("a model with `experts:` runs on one machine and has no workers", "`workers: []`, or none")
