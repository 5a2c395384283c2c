"""The flight recorder: what it keeps, what it leaves out, and that a replay shows the same fleet again."""

import asyncio
import gzip
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import main
from app.replay_engine import OnlyARecording, ReplayEngine
from fleet.config.schema import FleetConfig
from fleet.engine import Engine
from fleet.events import BringUp, NodeFound, NodeRead, Noted, OperationChanged, SwarmChanged
from fleet.model import (
    NodeReading,
    Operation,
    OperationState,
    PeerState,
    ServiceKind,
    ServiceRecord,
    Severity,
    Snapshot,
    StepRecord,
    StepState,
    Swarm,
    SwarmPeer,
)
from fleet.reduce import reduce
from fleet.telemetry.codec import RecordingBroken, decode, encode
from fleet.telemetry.recorder import CAP, READ_EVERY, SEGMENTS, Recorder, segments
from fleet.telemetry.recording import Recording, export, snapshots


def service(argv: tuple[str, ...] = ("llama-server",), pid: int = 7) -> ServiceRecord:
    return ServiceRecord("coordinator-8080", ServiceKind.COORDINATOR, pid, "12", argv, 8080, "127.0.0.1", True, 0.0,
                         "/home/u/x", facts={"env": {"HF_TOKEN": "hunter2", "LANG": "C"}, "workers": [{"node": "b"}],
                                             "api_key_file": "/home/u/key"})


class Flight:
    """A recorder beside a Snapshot that moves on."""

    def __init__(self, folder: Path, cap: int = CAP) -> None:
        self.now = 1_700_000_000.0
        self.snapshot = Snapshot(fleet="home")
        self.recorder = Recorder(folder, "home", cap=cap, epoch=lambda: self.now)

    def take(self, event) -> None:
        self.snapshot = reduce(self.snapshot, event)
        self.recorder.take(event, self.snapshot)
        self.now += 1.0


def test_a_recording_gives_the_same_snapshot_again(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    flight.take(NodeFound(1.0, "atlas", (), ("fleet.yaml",), local=True))
    flight.recorder.write()
    flight.take(NodeRead(2.0, "atlas", NodeReading(services=(service(),)), 0.01))
    flight.take(OperationChanged(3.0, Operation(1, "up", "Bring up", OperationState.RUNNING,
                                                (StepRecord("Load", state=StepState.RUNNING, progress=0.4),))))
    flight.take(SwarmChanged(4.0, Swarm("m", "m.gguf", 10, 2, 5, (SwarmPeer("b", PeerState.PULLING, b"\x80", 1),))))
    flight.take(Noted(5.0, 99.0, Severity.WARNING, "the node\x1b[2J is slow", "atlas"))
    flight.recorder.write()
    *_, (at, last) = snapshots(Recording(tuple(segments(tmp_path))))
    cleaned = decode(encode(0.0, flight.snapshot)).item       # the same but for what is hidden
    assert last == cleaned
    assert last.swarms == flight.snapshot.swarms
    assert at == 1_700_000_004.0


def test_no_secret_is_written(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    flight.take(NodeFound(1.0, "atlas", (), ("fleet.yaml",)))
    argv = ("llama-server", "--api-key", "sk-hunter2", "--api-key-file", "/home/u/key", "-hft", "hunter2")
    flight.take(NodeRead(2.0, "atlas", NodeReading(services=(service(argv),))))
    flight.recorder.write()
    flight.recorder._path = None                               # a new segment begins with the whole Snapshot
    flight.take(Noted(3.0, 3.0, Severity.INFO, "x"))
    flight.recorder.write()
    written = b"".join(path.read_bytes() for path in segments(tmp_path))
    assert b"hunter2" not in written
    assert b"/home/u/key" in written
    assert {stat.S_IMODE(path.stat().st_mode) for path in segments(tmp_path)} == {0o600}


def test_probes_that_tell_nothing_new_are_thinned_out_and_a_death_is_kept_at_once(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    flight.take(NodeFound(0.0, "atlas", (), ()))
    for second in range(100):
        flight.take(NodeRead(float(second), "atlas", NodeReading(services=(service(),))))
    flight.take(NodeRead(100.5, "atlas", NodeReading(services=(replace(service(), alive=False),))))
    flight.recorder.write()
    reads = [r.item for r in Recording(tuple(segments(tmp_path))) if isinstance(r.item, NodeRead)]
    assert len(reads) == 100 / READ_EVERY + 1
    assert not reads[-1].reading.services[0].alive


def test_the_cap_holds_and_every_segment_can_be_replayed_by_itself(tmp_path: Path) -> None:
    cap = 200_000
    flight = Flight(tmp_path, cap)
    flight.take(NodeFound(0.0, "atlas", (), ()))
    for number in range(4000):
        flight.take(Noted(float(number), float(number), Severity.INFO, f"line {number} " + "x" * 60))
        if number % 20 == 19:
            flight.recorder.write()
            assert sum(path.stat().st_size for path in segments(tmp_path)) < cap * 1.2
    kept = segments(tmp_path)
    assert 2 < len(kept) <= SEGMENTS + 1
    for path in kept:
        *_, (_, snapshot) = snapshots(Recording((path,)))
        assert "atlas" in snapshot.nodes
    assert snapshot.notices[-1].text.startswith("line 3999 ")


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_recording(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    flight = Flight(tmp_path / "file" / "flight")
    flight.take(Noted(1.0, 1.0, Severity.INFO, "x"))
    flight.recorder.write()
    assert flight.recorder.lost == 1
    assert "cannot write" in flight.recorder.problem


def test_half_a_line_and_foreign_bytes_are_left_out(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    flight.take(Noted(1.0, 1.0, Severity.INFO, "kept"))
    flight.recorder.write()
    path = segments(tmp_path)[0]
    with path.open("ab") as file:
        file.write(b'\x00\xff garbage\n{"t": 1, "kind": "Noted", "data": {"at": "x"}}\n{"t": 2, "kind": "Ev')
    recording = Recording((path,))
    assert len(list(recording)) == 2
    assert recording.damaged == 3


def test_an_exported_file_plays_and_is_never_written_over(tmp_path: Path) -> None:
    flight = Flight(tmp_path / "flight")
    flight.take(Noted(1.0, 1.0, Severity.INFO, "kept"))
    flight.recorder.write()
    target = tmp_path / "report.flight.gz"
    assert export(segments(tmp_path / "flight"), target) == 2
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [recorded.item for recorded in Recording((target,))][-1].text == "kept"
    with pytest.raises(RecordingBroken, match="cannot be written"):
        export(segments(tmp_path / "flight"), target)
    assert sorted(os.listdir(tmp_path)) == ["flight", "report.flight.gz"]


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", gzip.compress(b"x" * 100)[:-9], b"[1, 2]\n" * 10])
def test_what_is_no_recording_is_refused_in_words(tmp_path: Path, content: bytes,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    assert main(["replay", "--no-ui", str(path)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_the_verbs_list_export_and_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["flight", "export", str(tmp_path / "x")]) == 1
    flight = Flight(tmp_path / "quarterdeck" / "flight")
    flight.take(Noted(1.0, 1.0, Severity.INFO, "first"))
    flight.recorder.write()
    flight.take(Noted(2.0, 2.0, Severity.WARNING, "bolt\x1b[2J is slow"))
    flight.recorder.write()
    capsys.readouterr()
    assert main(["flight", "list"]) == 0
    assert "home-" in capsys.readouterr().out
    assert main(["flight", "export", str(tmp_path / "x.gz")]) == 0
    assert main(["replay", "--no-ui", str(tmp_path / "x.gz")]) == 0
    printed = capsys.readouterr().out
    assert "warning: bolt\\x1b[2J is slow" in printed
    assert "\x1b" not in printed


async def test_an_engine_keeps_what_happens(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "home")
    engine = Engine(FleetConfig(fleet="home"), discover=False, recorder=recorder)
    running = asyncio.ensure_future(engine.run())
    await engine.settled(20.0)
    engine.emit(Noted(1.0, 1.0, Severity.INFO, "from the engine"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    texts = [r.item.text for r in Recording(tuple(segments(tmp_path))) if isinstance(r.item, Noted)]
    assert "from the engine" in texts


async def test_a_replay_looks_like_an_engine_and_does_nothing() -> None:
    lines = [decode(encode(1.0, Snapshot(fleet="home"))),
             decode(encode(2.0, NodeFound(5.0, "atlas", (), ()))),
             decode(encode(500.0, Noted(9.0, 9.0, Severity.INFO, "late")))]
    engine = ReplayEngine(lines, speed=1000.0)
    running = asyncio.ensure_future(engine.run())
    assert await engine.settled(5.0)
    await asyncio.wait_for(engine.over.wait(), 20.0)
    assert engine.latest.notices[-1].text == "late"
    assert (engine.clock(), list(engine.latest.nodes)) == (9.0, ["atlas"])
    with pytest.raises(OnlyARecording, match="recording"):
        engine.submit(BringUp("x"))
    assert (await engine.plan(BringUp("x"))).state is OperationState.REFUSED
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
