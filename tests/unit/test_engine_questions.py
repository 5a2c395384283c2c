"""What the engine asks a person, and what it asks no more."""

from __future__ import annotations

import asyncio

from fleet.config.schema import FleetConfig
from fleet.engine import Engine
from fleet.model import QuestionKind


async def asked(engine: Engine, kind: QuestionKind, answer: str | None) -> str | None:
    """Let the engine ask, answer, and give what the asker was told."""
    waiting = asyncio.ensure_future(engine._ask(kind, "atlas", "Well?", ""))
    while not engine.latest.questions:
        await engine.changed(engine.version)
    engine.answer(engine.latest.questions[0].id, answer)
    return await waiting


async def test_who_has_declined_is_asked_again_only_when_they_try_the_node() -> None:
    engine = Engine(FleetConfig(), interactive=True, discover=False)
    assert await asked(engine, QuestionKind.HOST_KEY, None) is None
    assert await engine._ask(QuestionKind.HOST_KEY, "atlas", "Well?", "") is None
    assert await asked(engine, QuestionKind.PASSWORD, "open sesame") == "open sesame", "another question is another"
    engine.connect("atlas")
    assert await asked(engine, QuestionKind.HOST_KEY, "yes") == "yes"


async def test_a_question_that_is_taken_back_was_not_declined() -> None:
    engine = Engine(FleetConfig(), interactive=True, discover=False)
    waiting = asyncio.ensure_future(engine._ask(QuestionKind.PASSWORD, "atlas", "Well?", ""))
    await engine.changed(engine.version)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await asked(engine, QuestionKind.PASSWORD, "now") == "now"
