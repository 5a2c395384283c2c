"""`quarterdeck chat [PROMPT]`: talk to the model that the fleet serves. The answer streams."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.as_json import SCHEMA, to_text
from app.engines import engine_maker
from app.exit_codes import BadUsage, ExitCode, NothingThere
from app.face import EngineFace
from app.output import note, paint, put
from app.present.units import count, rate
from app.session import run_to_end, watching
from app.typed_line import TypedLines
from app.verbs.status import ANSWERS, head_judged
from app.which_fleet import WhichFleet, which_fleet
from fleet.errors import ServiceError
from fleet.model import Deployment
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.runtimes.head_answers import Timings
    from fleet.runtimes.head_http import HeadClient

INPUT_LIMIT = 16 * 1024 * 1024   # characters of a prompt from a pipe
MOST_CHAT = 4096       # tokens of an answer, where the person says nothing
MOST_CONTINUED = 64    # of a model that never stops by itself
CUT = ("length", "limit")
HELP = "ctrl+c stops an answer, ctrl+d leaves, /new begins anew"


@dataclass
class Conversation:
    """What was said so far, in the form that llama-server takes."""

    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def say(self, role: str, text: str) -> None:
        """Add one message."""
        self.messages.append({"role": role, "content": text})


def run(options: argparse.Namespace) -> int:
    """One question with an answer, or a conversation."""
    prompt = given_prompt(options)
    if prompt is None and options.json:
        raise BadUsage("--json wants one PROMPT.", "Give it as an argument, or on standard input.")
    which = which_fleet(options, demo_counts=True)
    return run_to_end(lambda: _chat(options, which, prompt))


def given_prompt(options: argparse.Namespace) -> str | None:
    """The one question; None for a conversation, which needs a terminal to type at."""
    words = " ".join(options.prompt)
    if options.prompt and words != "-":
        text, where = words.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "PROMPT"  # as JSON takes it
    elif not options.prompt and sys.stdin.isatty():
        return None
    else:
        text, where = sys.stdin.read(INPUT_LIMIT).strip(), "standard input"
    if not text.strip():
        raise BadUsage(f"There is no prompt: {where} is empty.", 'Say one: quarterdeck chat "Hello"')
    return text


async def _chat(options: argparse.Namespace, which: WhichFleet, prompt: str | None) -> int:
    async with watching(engine_maker(which, options)) as engine:
        await head_judged(engine)
        deployment = serving(engine)
        note(f"{visible(deployment.model or 'the model')} on {visible(deployment.head)} at "
             f"{visible(deployment.endpoint)}, {count(len(deployment.workers), 'worker')}")
        conversation = Conversation(options.system)
        if prompt is not None:
            return await _one_answer(engine, options, conversation, prompt)
        note(HELP)
        return await _converse(engine, options, conversation)


def serving(engine: EngineFace) -> Deployment:
    """What serves.

    Raises:
        NothingThere: nothing does.
    """
    deployment = engine.latest.deployment
    if deployment.state not in ANSWERS:
        why = f" {deployment.problem.what}" if deployment.problem else ""
        raise NothingThere(f"No model answers: it is {deployment.state.value}.{why}",
                           "Bring one up: quarterdeck up, or quarterdeck demo.")
    return deployment


async def _one_answer(engine: EngineFace, options: argparse.Namespace, conversation: Conversation, prompt: str) -> int:
    conversation.say("user", prompt)
    async with connected(engine) as client:
        answer = await stream_answer(client, options, conversation, quiet=options.json)
    if options.json:
        deployment = engine.latest.deployment
        put(to_text({"schema": SCHEMA, "model": deployment.model, "head": deployment.head,
                     "endpoint": deployment.endpoint, "answer": answer.text, "stop": answer.stop,
                     "timings": answer.timings}))
    return ExitCode.OK


async def _converse(engine: EngineFace, options: argparse.Namespace, conversation: Conversation) -> int:
    async with TypedLines() as typed:
        while (line := await typed.ask("> ")) is not None:
            if not line.strip():
                continue
            if line.strip() == "/new":
                conversation.start_anew()
                continue
            conversation.say("user", line)
            try:
                async with connected(engine) as client:
                    answer = await typed.interruptible(stream_answer(client, options, conversation))
            except ServiceError as error:
                note(f"{visible(error.what)} {visible(error.remedy)}".rstrip())
                conversation.messages.pop()
                continue
            if answer is None:
                put("\n(stopped)")
                conversation.messages.pop()
            else:
                conversation.say("assistant", answer.text)
    put()
    return ExitCode.OK


@asynccontextmanager
async def connected(engine: EngineFace) -> AsyncIterator[HeadClient]:
    """A client of what serves now.

    Raises:
        NothingThere: nothing does.
    """
    serving(engine)
    client = engine.head_client()
    if client is None:
        raise NothingThere("No model answers any more.", "Bring one up: quarterdeck up.")
    async with client:
        yield client


@dataclass
class Answer:
    """A whole answer."""

    text: str
    stop: str
    timings: Timings | None


async def stream_answer(client: HeadClient, options: argparse.Namespace, conversation: Conversation, *,
                        quiet: bool = False) -> Answer:
    """Print the answer as it comes; what a thinking model says to itself goes to stderr, on a terminal only."""
    made_to_chat = await client.is_made_to_chat()
    if not made_to_chat and len(conversation.messages) == 1:
        note("this model was not made to chat: it continues your text")
    most = options.max_tokens if options.max_tokens is not None else MOST_CHAT if made_to_chat else MOST_CONTINUED
    temperature = options.temperature
    if temperature is None and not made_to_chat:
        temperature = 0.0  # text that only goes on is of use when it is the likeliest
    aside = not quiet and sys.stderr.isatty()
    parts: list[str] = []
    stop, timings = "", None
    async with aclosing(client.chat(conversation.messages, n_predict=most, temperature=temperature)) as pieces:
        async for piece in pieces:
            stop, timings = piece.stop or stop, piece.timings or timings
            parts.append(piece.text)
            if piece.reasoning and aside:
                thought = paint(visible(piece.reasoning, keep="\n\t"), "dim", sys.stderr)
                print(thought, end="", file=sys.stderr, flush=True)
            if piece.text and not quiet:
                put(visible(piece.text, keep="\n\t"), end="")
    if not quiet:
        put()
        if aside and timings is not None:
            cut = f", cut at {most} tokens" if stop in CUT else ""
            note(f"{timings.tokens} tokens, {rate(timings.tokens_per_second)}{cut}")
    return Answer("".join(parts), stop, timings)
