"""Small models, real seeders, and peers that do it wrong."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fleet.node import SEED, Access, Manifest, Seeder, Store, Throttle, create_manifest, mark_source

PIECE = 65_536


def make_model(folder: Path, pieces: int = 12, *, name: str = "tiny.gguf", piece_size: int = PIECE,
               seed: int = 1) -> tuple[Manifest, bytes]:
    """A model of `pieces` pieces, the last of which is short, with manifest and note beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    data = random.Random(seed).randbytes(piece_size * pieces - 123)
    (folder / name).write_bytes(data)
    manifest = create_manifest(folder / name, piece_size=piece_size, facts={"architecture": "llama"})
    mark_source(manifest, folder)
    return manifest, data


def make_shards(folder: Path, sizes: tuple[int, ...] = (150_000, 65_536, 1)) -> tuple[Manifest, list[bytes]]:
    """A model in several files."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, paths = [], []
    for number, size in enumerate(sizes, 1):
        path = folder / f"big-{number:05}-of-{len(sizes):05}.gguf"
        parts.append(random.Random(number).randbytes(size))
        path.write_bytes(parts[-1])
        paths.append(path)
    manifest = create_manifest(paths, piece_size=PIECE)
    mark_source(manifest, folder)
    return manifest, parts


@contextmanager
def seeding(manifest: Manifest, folder: Path, *, port: int = 0, access: Access | None = None,
            up: float = 0.0, **limits: float) -> Iterator[Seeder]:
    """A real seeder of a folder."""
    store = Store(manifest, folder, mode=SEED)
    store.open()
    seeder = Seeder(port=port, access=access, throttle=Throttle(up), **limits)
    seeder.add(store)
    seeder.start()
    try:
        yield seeder
    finally:
        seeder.stop()
        store.close()


@contextmanager
def odd_peer(manifest: Manifest, data: bytes, how: str, have: list[int] | None = None) -> Iterator[str]:
    """A peer that says it has `have` and does `how`: right, corrupt, truncate, lie, hang, garbage, endless, drip."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def answer(self, body: bytes, length: int | None = None, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/bitfield":
                self.answer(json.dumps({"have": list(range(manifest.count)) if have is None else have}).encode())
                return
            piece = manifest.piece(int(self.path.rpartition("/")[2]))
            right = data[piece.offset:piece.offset + piece.size]
            if how == "right":
                self.answer(right)
            elif how == "corrupt":
                self.answer(right[:-1] + bytes([right[-1] ^ 1]))
            elif how == "truncate":
                self.answer(right[:piece.size // 2], piece.size)
                self.close_connection = True
            elif how == "lie":
                self.answer(b"no", status=404)
            elif how == "hang":
                over.wait(30)
                self.close_connection = True
            elif how == "garbage":
                self.wfile.write(b"\x00\xff" * 300)
                self.close_connection = True
            elif how == "endless":
                self.answer(right, 1 << 50)
                self.close_connection = True
            elif how == "drip":
                self.send_response(200)
                self.send_header("Content-Length", str(piece.size))
                self.end_headers()
                for at in range(0, piece.size, 512):
                    self.wfile.write(right[at:at + 512])
                    if over.wait(0.2):
                        break
                self.close_connection = True

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def ask(port: int, request: bytes, most: int = 1 << 20) -> bytes:
    """Everything that comes back for raw bytes, until the other end closes."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.settimeout(20)
        sock.sendall(request)
        parts, got = [], 0
        while got < most:
            try:
                part = sock.recv(65_536)
            except ConnectionResetError:
                break
            if not part:
                break
            parts.append(part)
            got += len(part)
        return b"".join(parts)


def get(port: int, path: str, **fields: str) -> tuple[int, bytes]:
    """(status, body) of one GET on a connection of its own."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    answer = ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
