"""One guest of a seeder: its requests one after another on one connection."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import heads, sockets
from .manifest import Piece
from .store import Store
from .tracker import INTERVAL, peer_url

if TYPE_CHECKING:
    from .seeder import Seeder

LONGEST_WAIT = 60.0      # seconds of a long poll
TURN_STALL = 4.0         # seconds without a byte after which another guest has its turn with a piece
LEAST_TAKEN = 16_384     # bytes that a guest has to take within the seeder's stall time
_REASONS = {200: "OK", 206: "Partial Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
            404: "Not Found", 405: "Method Not Allowed", 416: "Range Not Satisfiable", 503: "Unavailable"}
_JSON = {"Content-Type": "application/json"}
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}


class Visit:
    """`where` is the guest's address; serve_one() answers one request."""

    def __init__(self, seeder: Seeder, line: sockets.Line, where: str) -> None:
        self.seeder, self.line, self.where = seeder, line, where
        self._keep = False

    def serve_one(self) -> bool:
        """Read a request and answer it; False when the connection is over. Errors: OSError, BadHead."""
        head = self.line.head(self.seeder.idle, self.seeder.head_within, self.seeder.stopping.is_set)
        if head is None:
            return False
        self._keep = False
        try:
            request = heads.parse_request(head)
        except heads.BadHead as error:
            self._text(400, str(error))
            return False
        status = self.seeder.access.judge(self.where, request.fields.get("authorization", ""))
        if status != 200:
            self._text(status, _REASONS[status], {"WWW-Authenticate": "Bearer"} if status == 401 else {})
            return False
        self._keep = request.keep
        if request.method != "GET":
            self._text(405, "only GET")
            return self._keep
        self._answer(request)
        return self._keep

    def _answer(self, request: heads.Request) -> None:
        parts = request.segments()
        if parts == ["announce"]:
            self._announce(request.query)
            return
        if parts == ["models"]:
            self._json(200, {"models": [self._health(store) for store in self.seeder.models()]})
            return
        key = ""
        if len(parts) >= 3 and parts[0] == "models":
            key, parts = parts[1], parts[2:]
        store = self.seeder.find(key)
        if store is None:
            self._text(404 if key else 503, "no such model" if key else "no model yet")
        elif parts == ["manifest"]:
            self._send(200, store.manifest.as_bytes(), _JSON)
        elif parts == ["health"]:
            self.seeder.look(store)
            self._json(200, self._health(store))
        elif parts == ["bitfield"]:
            self._bitfield(store, request.query)
        elif len(parts) == 2 and parts[0] == "pieces":
            self._piece(store, parts[1], request.fields.get("range", ""))
        else:
            self._text(404, "no such path")

    def _health(self, store: Store) -> dict:
        manifest, have = store.manifest, len(store.holdings)
        trouble = self.seeder.trouble(store)
        return {"status": "trouble" if trouble else "ok", "trouble": trouble, "name": manifest.name,
                "model": manifest.model, "filename": manifest.name, "manifest": manifest.id,
                "total_size": manifest.total_size, "total_pieces": manifest.count, "have_pieces": have,
                "completion_pct": round(100.0 * have / manifest.count, 1),
                "uptime_seconds": round(time.monotonic() - self.seeder.started, 1),
                "sent_bytes": self.seeder.total_sent(), "peer": self.seeder.id}

    def _bitfield(self, store: Store, query: Mapping[str, str]) -> None:
        since = _number(query.get("since", ""), 1 << 62)
        wait = min(LONGEST_WAIT, _number(query.get("wait", ""), 86_400) or 0)
        self.seeder.look(store)
        until = time.monotonic() + wait
        turns = self.seeder.turns(store)
        holdings = store.holdings if turns is None else turns.shown
        news = holdings.news(since)
        while since is not None and news.new == () and not self.seeder.stopping.is_set():
            left = until - time.monotonic()
            if left <= 0:
                break
            news = holdings.news(since, min(left, 5.0))
        known = {"version": news.version, "manifest": store.manifest.id, "peer": self.seeder.id}
        if turns is not None and turns.over:
            known["spare"] = True
        self._json(200, {"have": list(news.have), **known} if news.new is None else {"new": list(news.new), **known})

    def _piece(self, store: Store, word: str, wanted: str) -> None:
        index = _number(word, store.manifest.count - 1)
        if index is None or index not in store.holdings or not self.seeder.look(store):
            self._text(404, "the piece is not here")
            return
        piece = store.manifest.piece(index)
        fields = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        span = None
        if wanted:
            try:
                span = heads.parse_range(wanted, piece.size)
            except heads.BadHead:
                self._text(416, "no such range", {"Content-Range": f"bytes */{piece.size}"})
                return
        turns = self.seeder.turns(store)
        if turns is None:
            self._send_piece(store, piece, span, fields, self.seeder.stall)
            return
        if not turns.begin(index):
            self._text(404, "somebody else has this piece now")
            return
        sent = False
        try:
            self._send_piece(store, piece, span, fields, min(TURN_STALL, self.seeder.stall))
            sent = True
        finally:
            turns.end(index, sent)

    def _send_piece(self, store: Store, piece: Piece, span: tuple | None, fields: dict, stall: float) -> None:
        start, stop = span or (0, piece.size)
        status = 200
        if span is not None:
            status = 206
            fields["Content-Range"] = f"bytes {start}-{stop - 1}/{piece.size}"
        self._head(status, stop - start, fields, more=True)
        handle = os.dup(store.handle(piece.file))   # the store may be closed while this is sent
        try:
            self._send_file(handle, piece.at + start, stop - start, (store.manifest.id, piece.index), stall)
        finally:
            os.close(handle)

    def _send_file(self, handle: int, at: int, left: int, key: tuple, stall: float) -> None:
        seeder, sock = self.seeder, self.line.sock
        last, taken = time.monotonic(), 0
        while left > 0:
            count = min(left, seeder.throttle.chunk())
            delay = seeder.throttle.reserve(self.where, count)
            if delay > 0:
                if seeder.stopping.wait(min(delay, 60.0)):
                    raise sockets.Closed("stopped")
                last, taken = time.monotonic(), 0
            while count > 0:
                try:
                    sent = os.sendfile(sock.fileno(), handle, at, count)
                except BlockingIOError:
                    sent = -1
                now = time.monotonic()
                if sent == 0:
                    raise sockets.Closed("the file ends too early")
                taken += max(0, sent)
                if taken >= LEAST_TAKEN:
                    last, taken = now, 0
                if seeder.stopping.is_set() or now - last > stall:
                    raise sockets.TimedOut("the guest takes next to nothing")
                if sent < 0:
                    continue
                at, count, left = at + sent, count - sent, left - sent
                seeder.count(self.where, key, sent)

    def _announce(self, query: Mapping[str, str]) -> None:
        try:
            port = _number(query.get("port", "0"), 65_535)
            if port is None:
                raise ValueError("port is none")
            peers = self.seeder.tracker.announce(query.get("manifest", ""), self.where, port)
        except ValueError as error:
            self._text(400, str(error))
            return
        manifest = query["manifest"]
        urls = [peer_url(address, number, manifest) for address, number in peers]
        mine = f"/models/{manifest}" if self.seeder.find(manifest) is not None else ""
        self._json(200, {"peers": urls, "interval": INTERVAL, "here": mine})

    def _text(self, status: int, text: str, fields: dict | None = None) -> None:
        self._send(status, text.encode(), {**_TEXT, **(fields or {})})

    def _json(self, status: int, content: dict) -> None:
        self._send(status, json.dumps(content, separators=(",", ":")).encode(), _JSON)

    def _send(self, status: int, body: bytes, fields: Mapping[str, str]) -> None:
        head = heads.answer_head(status, _REASONS[status], len(body), fields, self._keep)
        sockets.send_all(self.line.sock, head + body, self.seeder.stall)

    def _head(self, status: int, length: int, fields: Mapping[str, str], more: bool) -> None:
        head = heads.answer_head(status, _REASONS[status], length, fields, self._keep)
        sockets.send_all(self.line.sock, head, self.seeder.stall, more)


def _number(word: str, most: int) -> int | None:
    if not word.isascii() or not word.isdigit() or len(word) > 19:
        return None
    return int(word) if int(word) <= most else None
