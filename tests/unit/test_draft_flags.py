"""`draft:` of a model: its settings, its flags by the build's own help, its memory in the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config.load import load
from fleet.config.schema import DraftConfig
from fleet.errors import ConfigError, PlanRefused
from fleet.models.memory import Ask
from fleet.planning.draft_flags import draft_bytes, draft_flags, draft_words, with_draft
from fleet.planning.drafting import expected_of, native_drafting
from fleet.planning.ladder import Fitted, Mode
from fleet.planning.planned import Holding, Split
from fleet.planning.rooms import Room, Rooms
from fleet.planning.solve import Deal
from fleet.planning.timing import Link, Part, Speed, predict
from fleet.runtimes.binaries import Flags

HELP = """
-md,   --model-draft, --spec-draft-model FNAME    draft model
--spec-type none,draft-simple,draft-mtp,ngram-mod  types
--spec-draft-device, -devd, --device-draft <dev1,dev2,..>  devices
--spec-draft-n-max N                    number of tokens
--spec-draft-override-tensor, -otd <tensor name pattern>=<buffer type>,...  override
"""
FLAGS = Flags.parse(HELP)
SPEED = Speed(1e9, "test")
GIB = 1 << 30


def rooms() -> Rooms:
    return Rooms(Room("desk", "CPU", None, 8 * GIB, SPEED),
                 (Room("pi", "CPU", 0, 4 * GIB, SPEED), Room("desk", "CUDA0", None, 6 * GIB, SPEED)))


@pytest.mark.parametrize(("draft", "expected"), [
    (None, ()),
    (DraftConfig("/m/d.gguf"), ("--spec-type", "draft-simple", "-md", "/m/d.gguf", "--spec-draft-device", "none",
                                "--spec-draft-n-max", "4")),
    (DraftConfig("/m/d.gguf", device="pi", length=3),
     ("--spec-type", "draft-simple", "-md", "/m/d.gguf", "--spec-draft-device", "RPC1", "-otd",
      r"token_embd\.weight=CPU", "--spec-draft-n-max", "3")),
    (DraftConfig("/m/d.gguf", device="CUDA0"), ("--spec-type", "draft-simple", "-md", "/m/d.gguf",
                                                "--spec-draft-device", "CUDA0", "--spec-draft-n-max", "4")),
    (DraftConfig(mode="ngram-mod"), ("--spec-type", "ngram-mod")),
    (DraftConfig(mode="draft-mtp", length=2), ("--spec-type", "draft-mtp", "--spec-draft-n-max", "2")),
])
def test_flags_follow_the_builds_own_help(draft: DraftConfig | None, expected: tuple[str, ...]) -> None:
    assert draft_flags(FLAGS, draft, {"pi": "RPC1"}, head="desk") == expected


def test_a_build_without_the_flags_is_refused() -> None:
    with pytest.raises(PlanRefused, match="cannot draft"):
        draft_flags(Flags.parse("-m, --model FNAME   model"), DraftConfig("/m/d.gguf"), {}, head="desk")


def test_a_node_that_takes_no_part_is_refused() -> None:
    with pytest.raises(PlanRefused, match="attic"):
        draft_flags(FLAGS, DraftConfig("/m/d.gguf", device="attic"), {"pi": "RPC0"}, head="desk")


def test_the_rules_see_what_is_drafted_with() -> None:
    assert draft_words(DraftConfig("/m/d.gguf")) == ("--spec-type", "draft-simple", "-md", "/m/d.gguf")


@pytest.mark.parametrize(("device", "host", "pi", "gpu"), [
    ("", 1, 0, 0), ("none", 1, 0, 0), ("desk", 1, 0, 0), ("pi", 0, 1, 0), ("RPC0", 0, 1, 0), ("CUDA0", 0, 0, 1)])
def test_its_memory_is_taken_where_it_runs(device: str, host: int, pi: int, gpu: int) -> None:
    before, after = rooms(), with_draft(rooms(), DraftConfig("/m/d.gguf", device=device), GIB)
    taken = [a.limit - b.limit for a, b in zip((before.host, *before.devices), (after.host, *after.devices),
                                               strict=True)]
    assert taken == [part * draft_bytes(GIB) for part in (host, pi, gpu)]


def test_a_draft_that_needs_no_model_takes_no_memory() -> None:
    assert with_draft(rooms(), DraftConfig(mode="ngram-mod"), 0) == rooms()


def written(folder: Path, draft: str) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(f"models:\n  big:\n    file: /m/big.gguf\n    draft: {draft}\n")
    return path


@pytest.mark.parametrize(("text", "expected"), [
    ("/m/d.gguf", DraftConfig("/m/d.gguf")),
    ("{file: /m/d.gguf, device: pi, length: 6}", DraftConfig("/m/d.gguf", device="pi", length=6)),
    ("{mode: ngram-mod}", DraftConfig(mode="ngram-mod")),
])
def test_settings_are_read(tmp_path: Path, text: str, expected: DraftConfig) -> None:
    assert load(written(tmp_path, text)).models["big"].draft == expected


@pytest.mark.parametrize(("text", "said"), [
    ("{device: pi}", "'file' is missing"), ("{mode: magic}", "no way to speculate"),
    ("{file: /m/d.gguf, length: 0}", "length"), ("{file: /m/d.gguf, lenght: 3}", "lenght")])
def test_wrong_settings_are_told_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(written(tmp_path, text))


@pytest.mark.parametrize(("delay", "pays"), [(0.0, False), (0.005, False), (0.050, True), (0.100, True)])
def test_a_draft_in_the_head_pays_where_passes_are_dear(delay: float, pays: bool) -> None:
    assert native_drafting(0.022 + 2 * delay, 2 * delay, 0.020).pays is pays


def test_on_a_gpu_a_token_more_costs_nearly_nothing() -> None:
    found = native_drafting(0.050, 0.0, 0.005, on_gpu=True, chance=0.8)
    assert found.pays and found.length >= 4 and found.speed_up > 2


def split_of(device: str, link: Link | None) -> Split:
    room = Room("pi", device, 0, 4 * GIB, Speed(20e9, "test"), link=link)
    host = Holding(Room("desk", "CPU", None, 8 * GIB, Speed(20e9, "test")), 0, 0, 0, 0, 0, 0, 0)
    parts = [Part("pi", device, GIB, 4096, room.speed, link)]
    fitted = Fitted(Deal((0, 20), (0, GIB), 0.1, fits=True), Ask(4096), Mode.TIME)
    return Split(fitted, host, (Holding(room, 0, 20, GIB, 0, 0, GIB, 4096),), False, predict(parts))


def test_a_plan_says_what_its_draft_model_is_expected_to_do() -> None:
    draft = DraftConfig("/m/d.gguf")
    near = expected_of(split_of("CPU", Link(0.0005, 1e8)), draft, GIB // 2)
    far = expected_of(split_of("CPU", Link(0.300, 1e8)), draft, GIB // 8)
    assert near is not None and not near.pays and far is not None and far.pays and "x of its speed" in far.reason
    assert expected_of(split_of("CPU", None), draft, 0) is None
