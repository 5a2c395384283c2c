"""Talking to a head: its health, what it says of itself, and completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from fleet.errors import FleetError, PortClosed, ServiceError
from fleet.nodes.transport import Transport
from fleet.runtimes.head_answers import (
    Completion,
    HeadHealth,
    Piece,
    Props,
    Slot,
    Timings,
    error_message,
    mapping,
    read_chat_piece,
    read_completion,
    read_completion_piece,
    read_props,
    read_slots,
)
from fleet.runtimes.head_metrics import Metrics, parse_metrics
from fleet.runtimes.sse import DataLines

if TYPE_CHECKING:
    import httpx

ASK_TIMEOUT = 5.0             # seconds: health, props, slots, metrics
ANSWER_TIMEOUT = 600.0        # seconds without a byte: a long prompt is read before the first one comes
BODY_LIMIT = 8 * 1024 * 1024  # bytes of one answer that is no stream
KEY_FILE_LIMIT = 64 * 1024
AWAKE_FOR = 0.5               # seconds that "it does not sleep" is believed

Pieces = AsyncGenerator[Piece, None]

_CHATML = "<|im_start|>"


class HeadError(ServiceError):
    """A head does not answer, or answers with an error."""

    code = "head"


class HeadClient:
    """A client of one llama-server, through its node. Use it as a context manager, or call `close`.

    Args:
        transport: of the head's node, or of any node that reaches `host`.
        host: what the head is bound to; an address that means "all" becomes loopback.
        port: of the head.
        api_key: sent with every request.
        api_key_file: path on the node of the head's own key file; its first key is used.
    """

    def __init__(self, transport: Transport, host: str, port: int, api_key: str | None = None, *,
                 api_key_file: str = "") -> None:
        self.name = f"the head on {transport.name}"
        self.health_detail = ""            # a sentence to the last `health()`
        self._transport = transport
        self._key = api_key
        self._key_file = api_key_file
        self._awake_until = 0.0
        dialled = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
        self._base = f"http://{f'[{dialled}]' if ':' in dialled else dialled}:{port}"
        # 0.1 s of processor to import: a fleet that serves nothing never pays it
        import httpx

        from fleet.runtimes.http_over_node import NodeHttpTransport

        self._http = httpx.AsyncClient(transport=NodeHttpTransport(transport), base_url=self._base)

    async def __aenter__(self) -> HeadClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of its connections."""
        await self._http.aclose()

    # --- what it says of itself ------------------------------------------------------------------

    async def health(self) -> HeadHealth:
        """How far it is. READY is no proof of where the model sits.

        Raises:
            NodeError: the node does not answer.
        """
        try:
            status, body = await self._get("/health", with_key=False)
        except PortClosed as error:
            self.health_detail = error.what
            return HeadHealth.DOWN
        except HeadError as error:
            self.health_detail = error.what
            return HeadHealth.STARTING if error.code == "silent" else HeadHealth.DOWN
        said = error_message(as_json(body))
        if status == 200:
            self.health_detail = "It answers."
            return HeadHealth.READY
        if status == 503:
            self.health_detail = said or "It is loading its model."
            return HeadHealth.LOADING
        self.health_detail = f"What answers at {self._base} is no llama-server (HTTP {status})."
        return HeadHealth.DOWN

    async def props(self) -> Props:
        """Model, context, slots, build; never wakes a sleeping head.

        Raises:
            HeadError, PortClosed: it does not answer, or with an error.
        """
        return read_props(as_json(await self._ask("/props")))

    async def slots(self) -> tuple[Slot, ...]:
        """Its slots; () while it sleeps (asking would wake it) and where it does not tell.

        For a head that may sleep ask seldom: each answer counts as use.
        """
        if await self._sleeps():
            return ()
        return read_slots(as_json(await self._ask("/slots", missing=b"[]")))

    async def metrics(self) -> Metrics:
        """Its counters; none while it sleeps (b10068 would wake up) and where it was started without them."""
        if await self._sleeps():
            return Metrics()
        return parse_metrics((await self._ask("/metrics", missing=b"")).decode("utf-8", "replace"))

    async def _sleeps(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._awake_until:
            return False
        if (await self.props()).is_sleeping:
            return True
        self._awake_until = now + AWAKE_FOR
        return False

    # --- slots over a restart --------------------------------------------------------------------

    async def save_slot(self, slot: int, name: str, *, timeout: float) -> int:
        """Have a slot's tokens and KV written to a file of its `--slot-save-path`; gives how many tokens.

        Raises:
            HeadError, PortClosed: it does not answer, or with an error.
        """
        return await self._slot("save", slot, name, "n_saved", timeout)

    async def restore_slot(self, slot: int, name: str, *, timeout: float) -> int:
        """Have such a file read back; gives how many tokens. Errors as `save_slot`."""
        return await self._slot("restore", slot, name, "n_restored", timeout)

    async def _slot(self, action: str, slot: int, name: str, told: str, timeout: float) -> int:
        async with self._answering("POST", f"/slots/{slot}?action={action}", {"filename": name}, timeout) as response:
            count = mapping(as_json(await self._body(response))).get(told)
        return count if isinstance(count, int) and count >= 0 else 0

    # --- completions -----------------------------------------------------------------------------

    async def complete(self, prompt: str, *, n_predict: int, temperature: float | None = None,
                       timeout: float = ANSWER_TIMEOUT) -> Completion:
        """Continue `prompt` by up to `n_predict` tokens, in one answer.

        Raises:
            HeadError, PortClosed: it does not answer, or with an error.
        """
        wanted = _wanted(prompt=prompt, n_predict=n_predict, temperature=temperature, cache_prompt=True)
        async with self._answering("POST", "/completion", wanted, timeout) as response:
            return read_completion(as_json(await self._body(response)))

    async def stream_completion(self, prompt: str, *, n_predict: int = -1, temperature: float | None = None,
                                timeout: float = ANSWER_TIMEOUT) -> Pieces:
        """Continue `prompt`, piece by piece; the last piece has the timings.

        Closing the iterator early ends the request on the head. Errors as `complete`.
        """
        wanted = _wanted(prompt=prompt, n_predict=n_predict, temperature=temperature, cache_prompt=True, stream=True)
        async with aclosing(self._stream("/completion", wanted, read_completion_piece, timeout)) as pieces:
            async for piece in pieces:
                yield piece

    async def stream_chat(self, messages: Sequence[Mapping[str, str]], *, n_predict: int = -1,
                          temperature: float | None = None, timeout: float = ANSWER_TIMEOUT) -> Pieces:
        """Answer `messages` ({"role", "content"}), piece by piece; the last piece has the timings. Errors as above."""
        wanted = _wanted(messages=[dict(message) for message in messages], max_tokens=n_predict,
                         temperature=temperature, stream=True)
        async with aclosing(self._stream("/v1/chat/completions", wanted, read_chat_piece, timeout)) as pieces:
            async for piece in pieces:
                yield piece

    async def chat(self, messages: Sequence[Mapping[str, str]], *, n_predict: int = -1,
                   temperature: float | None = None, timeout: float = ANSWER_TIMEOUT) -> Pieces:
        """Answer `messages`; a model that was not made to chat continues their text instead."""
        if await self.is_made_to_chat():
            answer = self.stream_chat(messages, n_predict=n_predict, temperature=temperature, timeout=timeout)
        else:
            prompt = "\n".join(message.get("content", "") for message in messages)
            answer = self.stream_completion(prompt, n_predict=n_predict, temperature=temperature, timeout=timeout)
        async with aclosing(answer) as pieces:
            async for piece in pieces:
                yield piece

    async def is_made_to_chat(self) -> bool:
        """Whether the model has a chat template of its own.

        `/props` shows one in any case: a model without gets ChatML lent. Such a model does not know
        ChatML's marks as tokens, one that was trained with them does.
        """
        template = (await self.props()).chat_template
        if _CHATML not in template:
            return bool(template)
        wanted = {"content": _CHATML, "add_special": False, "parse_special": True}
        async with self._answering("POST", "/tokenize", wanted, ASK_TIMEOUT) as response:
            tokens = mapping(as_json(await self._body(response))).get("tokens")
        return isinstance(tokens, list) and len(tokens) == 1

    async def _stream(self, path: str, wanted: Mapping[str, object], read: Callable[[object], Piece],
                      timeout: float) -> Pieces:
        lines, last = DataLines(), Piece()
        async with self._answering("POST", path, wanted, timeout) as response:
            async for part in response.aiter_raw():
                for data in lines.feed(part):
                    event = as_json(data.encode())
                    if message := error_message(event):
                        raise HeadError(f"{self.name} broke off its answer: {message}", "See its log.")
                    piece = read(event)
                    last = Piece(timings=piece.timings or last.timings, stop=piece.stop or last.stop)
                    if piece.text or piece.reasoning:
                        yield Piece(piece.text, piece.reasoning)
        if not last.stop:
            raise HeadError(f"{self.name} broke off its answer in the middle.",
                            "It or one of its workers died; see their logs.", code="broken-off")
        yield Piece(timings=last.timings or Timings(), stop=last.stop)

    # --- plumbing --------------------------------------------------------------------------------

    async def _ask(self, path: str, *, missing: bytes | None = None) -> bytes:
        """A small answer; `missing` where the head was started without this endpoint."""
        status, body = await self._get(path)
        if status in (404, 501) and missing is not None:
            return missing
        self._raise_for(status, body)
        return body

    async def _get(self, path: str, *, with_key: bool = True) -> tuple[int, bytes]:
        async with self._request("GET", path, None, ASK_TIMEOUT, with_key=with_key) as response:
            return response.status_code, await self._body(response)

    @asynccontextmanager
    async def _answering(self, method: str, path: str, wanted: Mapping[str, object],
                         timeout: float) -> AsyncIterator[httpx.Response]:
        """An answer that is no error."""
        async with self._request(method, path, wanted, timeout) as response:
            if response.status_code != 200:
                self._raise_for(response.status_code, await self._body(response))
            yield response

    @asynccontextmanager
    async def _request(self, method: str, path: str, wanted: Mapping[str, object] | None, timeout: float, *,
                       with_key: bool = True) -> AsyncIterator[httpx.Response]:
        import httpcore
        import httpx

        from fleet.runtimes.http_over_node import CONNECT_TIMEOUT

        headers = {"accept-encoding": "identity"}
        if with_key and (key := await self._api_key()):
            headers["authorization"] = f"Bearer {key}"
        limits = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT, pool=CONNECT_TIMEOUT)
        try:
            async with self._http.stream(method, path, json=wanted, headers=headers, timeout=limits) as response:
                yield response
        except (httpcore.TimeoutException, httpx.TimeoutException) as error:
            raise HeadError(f"{self.name} ({self._base}) gave no answer within {timeout:g} s.",
                            "It may read a long prompt, wait for a worker that hangs, or hang itself; see its log.",
                            code="silent") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpx.HTTPError, OSError,
                asyncio.IncompleteReadError) as error:
            raise HeadError(f"The connection to {self.name} ({self._base}) broke off: {str(error)[:200] or 'closed'}.",
                            "It or one of its workers died; see their logs.", code="dropped") from error

    async def _body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > BODY_LIMIT:
                raise HeadError(f"{self.name} answered with more than {BODY_LIMIT >> 20} MiB.",
                                "Is it a llama-server that listens there?", code="too-much")
        return bytes(body)

    async def _api_key(self) -> str:
        if self._key is None and self._key_file:
            content = await self._transport.read_file(self._key_file, 0, KEY_FILE_LIMIT)
            lines = (line.strip() for line in content.decode("utf-8", "replace").splitlines())
            self._key = next((line for line in lines if line), "")
            if not self._key.isascii() or not self._key.isprintable():
                self._key = None
                raise FleetError(f"The first line of {self._key_file} on {self._transport.name} is no API key.",
                                 "Put one key a line into it.", code="api-key")
        return self._key or ""

    def _raise_for(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        said = error_message(as_json(body)) or f"HTTP {status}"
        if status == 401:
            raise HeadError(f"{self.name} wants an API key: {said}.", "Name its key file as `api_key_file:`.",
                            code="api-key")
        if status == 503:
            raise HeadError(f"{self.name} is not ready: {said}.", "Wait until it has loaded its model.", code="loading")
        raise HeadError(f"{self.name} answered with an error: {said}.", "See its log.")


def _wanted(**given: object) -> dict[str, object]:
    return {name: value for name, value in given.items() if value is not None}


def as_json(body: bytes) -> object:
    """JSON of an untrusted peer; None when it is none. Deep nesting is none either."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
