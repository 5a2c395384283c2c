"""What a head that somebody else started serves, read from its command line."""

import pytest

from fleet.facts import WorkerRef
from fleet.model import Address, Interface, LinkKind, Node, NodeReading, ServiceKind, ServiceRecord
from fleet.operations.adoption import facts_of_adopted

WORKER = ServiceRecord("worker-50052", ServiceKind.WORKER, 7, "t", ("ggml-rpc-server",), 50052, "10.0.0.3", True, 1.0,
                       "/s")
NODES = {
    "atlas": Node("atlas", reading=NodeReading(services=())),
    "bolt": Node("bolt", addresses=(Address("bolt.local"),), reading=NodeReading(
        services=(WORKER,), interfaces=(Interface("eth0", LinkKind.WIRED, ("10.0.0.3/24",)),))),
}


def head(*argv: str, kind=ServiceKind.COORDINATOR) -> ServiceRecord:
    return ServiceRecord("coordinator-8080", kind, 9, "t", ("/opt/llama-server", *argv), 8080, "127.0.0.1", True, 1.0,
                         "/s")


def test_model_workers_and_context_are_read():
    facts = facts_of_adopted(head("--rpc", "10.0.0.3:50052,10.9.9.9:50052", "-m", "/m/gemma.gguf", "-c", "4096"),
                             "atlas", NODES, user="")
    assert (facts.model, facts.model_path, facts.context) == ("gemma", "/m/gemma.gguf", 4096)
    assert facts.workers == (WorkerRef("bolt", "worker-50052", "10.0.0.3:50052", 7),
                             WorkerRef("", "", "10.9.9.9:50052"))
    assert [(s.node, s.device, s.endpoint) for s in facts.planned] == [
        ("bolt", "RPC0", "10.0.0.3:50052"), ("10.9.9.9:50052", "RPC1", "10.9.9.9:50052")]


@pytest.mark.parametrize(("argv", "expected"), [
    (("--model=/m/a.gguf", "--alias=A", "--ctx-size=0"), ("A", "/m/a.gguf", None)),
    (("-m", "/m/a.gguf", "-a", "first", "-a", "last"), ("last", "/m/a.gguf", None)),
    (("-c", "many", "--rpc", ",,"), ("", "", None)), (("-m",), ("", "", None)), ((), ("", "", None)),
    (("-c", "²"), ("", "", None))])
def test_odd_command_lines(argv, expected):
    facts = facts_of_adopted(head(*argv), "atlas", NODES, user="")
    assert (facts.model, facts.model_path, facts.context) == expected
    assert facts.workers == ()


def test_loopback_is_the_heads_own_node():
    facts = facts_of_adopted(head("--rpc", "127.0.0.1:50052"), "bolt", NODES, user="")
    assert facts.workers == (WorkerRef("bolt", "worker-50052", "127.0.0.1:50052", 7),)


def test_a_worker_has_no_such_facts():
    assert facts_of_adopted(head(kind=ServiceKind.WORKER), "atlas", NODES, user="") is None
