"""A pid file, facts and HTTP answers that a hostile node or head wrote: nothing of it may end a watcher."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.as_json import to_text
from app.present import deployment, node_detail, services, status
from app.verbs.nodes import node_lines
from app.verbs.status import status_json, status_lines
from fleet.errors import ServiceError
from fleet.facts import head_facts
from fleet.judge import Evidence, judge_deployment, judge_services
from fleet.model import Address, Deployment, Node, NodeReading, NodeState, ServiceKind, Snapshot
from fleet.nodes import shell
from fleet.nodes.records import json_object, read_listing
from fleet.nodes.services import ServiceSpec
from fleet.runtimes.head_answers import read_chat_piece, read_completion, read_props, read_slots, read_timings
from widgets.entries import text_of_entries
from widgets.spans import plain

HUGE = 10**4000
NASTY = "\x1b]0;owned\x07[red]x[/red][link=http://e]\u202e\u2066\r\n\x9b2J"


def _listing(pid: dict[str, object], facts: object = None) -> str:
    said = json.dumps(facts) if facts is not None else "{}"
    return "\n".join(("qd-services 1 /home/x/.local/state/quarterdeck", "service coordinator-8080",
                      f"pid|{json.dumps(pid)}", "state alive", f"facts|{said}", "qd-services-end"))


def _pid(**other: object) -> dict[str, object]:
    return {"pid": 4711, "start_time": "boot:1", "started_epoch": 1.0, "argv": ["/opt/llama-server"], "port": 8080,
            "bind": "127.0.0.1", "build": "b1", "kind": "coordinator", "fleet": "home", **other}


@pytest.mark.parametrize("other", [
    {"started_epoch": HUGE}, {"started_epoch": 1e300}, {"started_epoch": float("nan")}, {"started_epoch": float("inf")},
    {"port": HUGE}, {"port": -1}, {"port": True}, {"pid": HUGE}, {"pid": 1}, {"argv": ["\ud800"]}, {"argv": ["a\0b"]},
    {"bind": "127.0.0.1\nreboot"}, {"bind": "x; reboot"}, {"bind": "\x1b[2J"}, {"bind": "a" * 300},
    {"env": {"\ud800": "x"}}, {"extra": HUGE}, {"start_time": "x y"}, {"kind": NASTY},
])
def test_a_pid_file_that_cannot_be_true_is_no_record(other: dict[str, object]) -> None:
    listing = read_listing(_listing(_pid(**other)))
    assert listing.records == () and listing.leftovers == ("coordinator-8080",)


FACTS: list[object] = [
    {"context": HUGE}, {"real": [{"node": "a", "model_bytes": HUGE}]}, {"planned": [{"fraction": HUGE}]},
    {"planned": [{"fraction": float("inf")}]}, {"planned": [{"fraction": float("nan"), "layers": -1}]},
    {"workers": [{"node": NASTY, "service": NASTY, "endpoint": NASTY, "pid": HUGE}] * 5000},
    {"model": NASTY, "model_path": NASTY * 1000, "api_key_file": "/x\0y"}, {"model": "\ud800"},
    {"workers": {"a": 1}, "planned": "x", "real": 7, "model": [], "context": True}, [1], "x", 7, None,
    {"model": NASTY, "context": 10**18, "planned": [{"node": NASTY, "device": NASTY, "endpoint": NASTY,
                                                     "fraction": 1e17, "layers": 2**60, "model_bytes": 2**60}] * 64,
     "real": [{"node": NASTY, "device": NASTY, "model_bytes": 2**60, "kv_bytes": 2**60}] * 64},
]


@pytest.mark.parametrize("facts", FACTS, ids=range(len(FACTS)))
def test_whatever_a_heads_facts_say_every_face_can_show_it_and_moves_no_terminal(facts: object) -> None:
    records = read_listing(_listing(_pid(argv=["/x/llama-server", NASTY, "-m", NASTY], build=NASTY, fleet=NASTY),
                                    facts)).records
    assert len(records) == 1
    head_facts(records[0].facts)
    address = Address("10.0.0.5")
    node = Node("bolt", NodeState.UP, addresses=(address,), address=address, read_at=1.0, reading=NodeReading(
        os=NASTY, arch=NASTY, hostname=NASTY, user=NASTY, services=records))
    evidence = Evidence({}, {})
    node = replace(node, services=judge_services(node, evidence, 2.0))
    what = judge_deployment({"bolt": node}, evidence, Deployment(), 2.0)
    snapshot = Snapshot(nodes={"bolt": node}, deployment=what)
    shown = [*node_lines(snapshot), *status_lines(snapshot, 5.0), to_text(snapshot)]
    shown.append(to_text(status_json(snapshot, 2.0)))
    shown += text_of_entries(deployment.detail(snapshot, 3.0)).split("\n")
    shown += text_of_entries(node_detail.detail(snapshot, node, 3.0)).split("\n")
    selected = services.head_of(snapshot)
    assert selected is not None
    shown += text_of_entries(services.detail(snapshot, selected, 3.0)).split("\n")
    shown += text_of_entries(status.events(snapshot)).split("\n")
    shown += [plain(cell) for row in (*deployment.rows(what), *services.rows(snapshot)) for cell in row.cells
              if isinstance(cell, tuple)]
    assert not [text for text in shown if set(text) & set("\x1b\x07\x9b\r\u202e\u2066")]


@pytest.mark.parametrize("text", ['{"a":' * 200_000, "[" * 100_000, '{"a": 1e999}', '{"a": NaN}', '{"a": "\\ud800"}',
                                  '{"\\u0000": 1}', '{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 4000 + "}"])
def test_json_that_cannot_be_counted_with_or_sent_on_is_an_empty_object(text: str) -> None:
    assert json_object(text) == {}


def test_a_service_is_never_started_again_from_what_no_shell_can_be_given() -> None:
    spec = ServiceSpec("worker-1", ServiceKind.WORKER, ("/bin/x", "\ud800"))
    with pytest.raises(ServiceError, match="half a character"):
        spec.check()
    byte = ServiceSpec("worker-1", ServiceKind.WORKER, ("/bin/x", "\udcff"))
    byte.check()
    shell.request(":", byte.argv)


@pytest.mark.parametrize("number", [HUGE, -1, 1e308, float("nan"), float("inf"), True, "7", None, [], {}])
def test_numbers_of_a_head_are_bounded(number: object) -> None:
    timings = read_timings({"prompt_n": number, "predicted_n": number, "prompt_ms": number, "predicted_ms": number})
    assert timings is not None
    assert timings.tokens_per_second is None or timings.tokens_per_second < 1e30
    read_props({"total_slots": number, "default_generation_settings": {"n_ctx": number}})
    read_slots([{"id": number, "n_ctx": number, "is_processing": number}] * 3000)
    read_completion({"tokens_evaluated": number, "tokens_predicted": number, "timings": number, "content": number})


def test_half_a_character_in_an_answer_can_be_sent_back_in_the_next_question() -> None:
    piece = read_chat_piece({"choices": [{"delta": {"content": "a\ud83d", "reasoning_content": "\udc00"}}]})
    assert json.dumps([piece.text, piece.reasoning], ensure_ascii=False).encode("utf-8") == b'["a?", "?"]'
