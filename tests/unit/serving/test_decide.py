"""Swap on request and an end to what nobody uses: who comes first, who has to wait, and what is never disturbed."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleet.config.schema import FleetConfig, ModelConfig, ServingConfig
from fleet.model import (
    Deployment,
    DeploymentState,
    Operation,
    OperationState,
    Proxy,
    ProxyUpstream,
    Snapshot,
)
from fleet.serving.decide import AGAIN_AFTER, Memory, decide, failed

SERVES = Deployment(DeploymentState.SERVING, model="a", head="atlas", head_service="coordinator-8080")
MODELS = {name: ModelConfig(name, f"/m/{name}.gguf") for name in ("a", "b", "c")}


def config(**serving) -> FleetConfig:
    return FleetConfig(models=MODELS, serving=ServingConfig(**{"on_request": True, **serving}))


def fleet(deployment: Deployment = SERVES, running: int = 0, *operations: Operation) -> Snapshot:
    upstream = ProxyUpstream("atlas/coordinator-8080", "", "", "ready", models=(deployment.model,), running=running)
    return Snapshot(deployment=deployment, operations=operations, proxies=(
        Proxy("atlas", "proxy-8088", "", 0.0, upstreams=(upstream,)),))


def settled(conf: FleetConfig, now: float = 0.0) -> Memory:
    return decide(Memory(), fleet(), conf, {}, now).memory


def test_what_is_asked_for_is_swapped_in_once_the_other_one_has_served_for_a_while():
    conf = config(least=20.0)
    early = decide(settled(conf), fleet(), conf, {"b": (2, 1.0)}, 5.0)
    assert (early.model, early.wait) == ("", 15.0)
    later = decide(early.memory, fleet(), conf, {"b": (2, 16.0)}, 20.0)
    assert later.model == "b" and "2 requests wait for b" in later.sentence


def test_a_model_with_work_may_finish_it_up_to_the_patience_of_who_waits():
    conf = config(least=0.0, patience=30.0)
    busy = decide(settled(conf), fleet(running=1), conf, {"b": (1, 10.0)}, 100.0)
    assert (busy.model, busy.wait) == ("", 20.0)
    assert decide(busy.memory, fleet(), conf, {"b": (1, 11.0)}, 101.0).model == "b"
    assert decide(busy.memory, fleet(running=1), conf, {"b": (1, 30.0)}, 120.0).model == "b"


def test_priority_comes_before_the_longest_wait():
    models = {**MODELS, "c": replace(MODELS["c"], priority=5)}
    conf = replace(config(least=0.0), models=models)
    assert decide(settled(conf), fleet(), conf, {"b": (9, 25.0), "c": (1, 1.0)}, 50.0).model == "c"
    assert decide(settled(conf), fleet(), conf, {"b": (9, 25.0), "a": (1, 30.0)}, 50.0).model == ""
    assert decide(settled(config(least=0.0)), fleet(), config(least=0.0), {"b": (1, 2.0), "c": (1, 3.0)},
                  50.0).model == "c"


def test_what_loads_is_pinned_or_worked_on_is_not_disturbed():
    conf, asked = config(least=0.0), {"b": (1, 900.0)}
    loading = fleet(replace(SERVES, state=DeploymentState.LOADING))
    at_it = Operation(1, "swap", "Swap", OperationState.RUNNING)
    assert decide(settled(conf), loading, conf, asked, 50.0).model == ""
    assert decide(settled(conf), fleet(SERVES, 0, at_it), conf, asked, 50.0).model == ""
    pinned = replace(conf, models={**MODELS, "a": replace(MODELS["a"], pinned=True)})
    assert decide(settled(conf), fleet(), pinned, asked, 50.0).model == ""
    off = config(least=0.0, on_request=False)
    assert decide(settled(off), fleet(), off, asked, 50.0).model == ""


def test_with_nothing_up_what_is_asked_for_comes_at_once():
    conf = config(least=100.0)
    assert decide(Memory(), fleet(Deployment()), conf, {"b": (1, 0.1)}, 1.0).model == "b"


def test_a_model_that_cannot_be_brought_up_is_not_tried_all_the_time():
    conf = config(least=0.0)
    memory = failed(settled(conf), "b", 10.0)
    assert decide(memory, fleet(), conf, {"b": (1, 9.0)}, 11.0).model == ""
    assert decide(memory, fleet(), conf, {"b": (1, 9.0), "c": (1, 1.0)}, 11.0).model == "c"
    assert decide(memory, fleet(), conf, {"b": (1, 9.0)}, 10.0 + AGAIN_AFTER).model == "b"


def test_what_nobody_uses_is_ended_and_a_request_keeps_it():
    conf = config(on_request=False, idle=60.0)
    memory = settled(conf)
    assert decide(memory, fleet(), conf, {}, 59.0).wait == 1.0
    used = decide(memory, fleet(running=1), conf, {}, 59.0).memory
    assert not decide(used, fleet(), conf, {}, 61.0).unload
    ended = decide(used, fleet(), conf, {}, 119.0)
    assert ended.unload and "Nobody has used a" in ended.sentence
    pinned = replace(conf, models={**MODELS, "a": replace(MODELS["a"], pinned=True)})
    assert not decide(used, fleet(), pinned, {}, 1e6).unload


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.5, 40.0)), min_size=1, max_size=60), st.floats(0.0, 60.0))
def test_two_clients_who_want_two_models_never_make_it_load_more_often_than_every_so_often(asks, least):
    conf, memory, now, serves, swaps = config(least=least, patience=0.0), Memory(), 0.0, "a", []
    for model, passes in asks:
        now += passes
        decision = decide(memory, fleet(replace(SERVES, model=serves)), conf, {model: (1, passes)}, now)
        memory = decision.memory
        if decision.model:
            swaps.append(now)
            serves = decision.model
            memory = decide(memory, fleet(replace(SERVES, model=serves)), conf, {}, now).memory
    assert all(later - earlier >= least for earlier, later in pairwise(swaps))
