"""Odd things in the place of our files, and files that change while they are seeded: nothing hangs or is harmed."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from fleet.node import REPAIR, Puller, Store, StoreError, SwarmError, load_manifest
from fleet.node.files import replace_file

from .parts import PIECE, get, make_model, seeding

WITHIN = 60.0       # seconds until a test gives up on what hangs
PLACES = ["tiny.gguf.part", "tiny.gguf.quarterdeck.pieces", "tiny.gguf.quarterdeck.manifest",
          ".tiny.gguf.quarterdeck.pieces.new", ".tiny.gguf.quarterdeck.manifest.new", "tiny.gguf"]


def put(kind: str, path: Path, elsewhere: Path) -> None:
    """A FIFO, socket, folder or link at `path`."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(os.path.relpath(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(elsewhere if kind == "link" else elsewhere.with_name("nowhere"))


def ended(work: object) -> BaseException | None:
    """What `work` ends with; a failure when it does not end."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except SwarmError as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WITHIN)
    assert outcome, "it hangs"
    return outcome[0]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "link", "link to nowhere"])
def test_what_is_no_file_is_refused_or_replaced_and_never_waited_for_or_followed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str) -> None:
    manifest, data = make_model(tmp_path / "source", 3)
    to, elsewhere = tmp_path / "to", tmp_path / "elsewhere"
    to.mkdir()
    monkeypatch.chdir(tmp_path)
    elsewhere.write_bytes(b"somebody else's")
    put(kind, to / place, elsewhere)
    with seeding(manifest, tmp_path / "source") as seeder:
        error = ended(Puller(manifest, to, [seeder.url], patience=2.0).run)
    assert elsewhere.read_bytes() == b"somebody else's"
    assert not elsewhere.with_name("nowhere").exists()
    if error is None:
        assert (to / "tiny.gguf").read_bytes() == data
        assert (to / "tiny.gguf").is_file() and not (to / "tiny.gguf").is_symlink()
    else:
        assert isinstance(error, StoreError) and error.what
        assert not (to / "tiny.gguf").is_file() or place == "tiny.gguf"


@pytest.mark.parametrize("kind", ["fifo", "folder", "link to nowhere"])
def test_a_manifest_that_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    put(kind, tmp_path / "m", tmp_path / "x")
    assert isinstance(ended(lambda: load_manifest(tmp_path / "m")), SwarmError)


def test_a_link_to_a_model_is_not_taken_for_the_model_by_a_repair(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 3)
    (tmp_path / "real.bin").write_bytes(b"x" + data[1:])
    to = tmp_path / "to"
    to.mkdir()
    (to / "tiny.gguf").symlink_to(tmp_path / "real.bin")
    manifest.save(to)
    with pytest.raises(StoreError, match="is a link"):
        Store(manifest, to, mode=REPAIR).open()
    assert (to / "tiny.gguf").is_symlink() and not (to / "tiny.gguf.part").is_symlink()


def test_a_file_that_is_written_anew_survives_a_leftover_of_a_crash(tmp_path: Path) -> None:
    (tmp_path / ".note.new").write_bytes(b"longer than what comes")
    replace_file(tmp_path / "note", b"short")
    assert (tmp_path / "note").read_bytes() == b"short"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note"]


@pytest.mark.parametrize("change", ["truncate", "grow", "replace", "rewrite", "unlink"])
def test_a_file_that_changes_while_it_is_seeded_never_becomes_a_wrong_copy(tmp_path: Path, change: str) -> None:
    source, to = tmp_path / "source", tmp_path / "to"
    manifest, data = make_model(source, 16)
    to.mkdir()
    path = source / "tiny.gguf"

    def alter() -> None:
        if change == "truncate":
            os.truncate(path, 2 * PIECE)
        elif change == "grow":
            with path.open("ab") as file:
                file.write(b"more")
        elif change == "replace":
            (source / "other").write_bytes(bytes(len(data)))
            os.replace(source / "other", path)
        elif change == "rewrite":
            with path.open("r+b") as file:
                file.write(bytes(len(data)))
        else:
            path.unlink()

    altered = threading.Event()

    def tell(record: object) -> None:
        if getattr(record, "event", "") == "piece" and not altered.is_set():
            altered.set()
            alter()

    with seeding(manifest, source, up=400_000) as seeder:
        error = ended(Puller(manifest, to, [seeder.url], tell=tell, patience=2.0, parallel=1).run)
        assert altered.is_set() and isinstance(error, SwarmError)
        assert not (to / "tiny.gguf").exists()
        assert get(seeder.port, "/pieces/0")[0] == 404
    (tmp_path / "again").mkdir()
    make_model(tmp_path / "again", 16)
    with seeding(manifest, tmp_path / "again") as seeder:
        assert ended(Puller(manifest, to, [seeder.url]).run) is None      # what came was right, and is kept
    assert (to / "tiny.gguf").read_bytes() == data


def test_marks_of_a_clock_that_was_wrong_cost_a_check_and_no_byte(tmp_path: Path) -> None:
    manifest, data = make_model(tmp_path / "source", 6)
    to = tmp_path / "to"
    to.mkdir()
    with seeding(manifest, tmp_path / "source", up=600_000) as seeder:
        puller = Puller(manifest, to, [seeder.url], tell=lambda record: puller.stop()
                        if getattr(record, "event", "") == "piece" else None)
        assert ended(puller.run) is not None
        for when in (0, 2**33, 1):      # 1970, 2242
            os.utime(to / "tiny.gguf.part", (when, when))
            store = Store(manifest, to)
            store.open()
            assert len(store.holdings) > 0
            store.close()
    with seeding(manifest, tmp_path / "source") as seeder:
        assert ended(Puller(manifest, to, [seeder.url]).run) is None
    assert (to / "tiny.gguf").read_bytes() == data
