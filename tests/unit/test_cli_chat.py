"""Talking to what serves: the answer streams to stdout and nothing else does."""

import io
import json

import pytest
from cli_engine import ScriptedEngine, node, service, serving

from app.cli import main as command
from app.exit_codes import ExitCode
from app.verbs.chat import MOST_CHAT, MOST_CONTINUED, Conversation
from fleet.model import DeploymentState
from fleet.runtimes.head_answers import Piece, Timings
from fleet.runtimes.head_http import HeadError

PIECES = (Piece(reasoning="hm"), Piece("Par"), Piece("is.\n\x1b[2J"), Piece(timings=Timings(tokens=3), stop="stop"))


class ScriptedHead:
    """A head that gives `pieces`, or the error among them."""

    def __init__(self, pieces=PIECES, *, made_to_chat: bool = True) -> None:
        self.pieces = pieces
        self.made_to_chat = made_to_chat
        self.asked: list[dict] = []
        self.closed = False

    async def __aenter__(self) -> "ScriptedHead":
        return self

    async def __aexit__(self, *error) -> None:
        self.closed = True

    async def is_made_to_chat(self) -> bool:
        return self.made_to_chat

    async def chat(self, messages, *, n_predict, temperature):
        self.asked.append({"messages": [dict(m) for m in messages], "n_predict": n_predict, "temperature": temperature})
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


@pytest.fixture
def talk(tmp_path, monkeypatch):
    """Runs `quarterdeck chat` with a head; gives the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "QUARTERDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(head: ScriptedHead, *words: str, typed: str = "", state: DeploymentState = DeploymentState.SERVING) -> int:
        snapshot = serving(node("atlas", service()), state=state)
        monkeypatch.setattr("app.verbs.chat.engine_maker",
                            lambda *a, **k: lambda: ScriptedEngine(snapshot, client=head))
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return command(["chat", *words])
    return run


def test_the_answer_is_all_of_stdout_and_safe_to_show(talk, capsys):
    head = ScriptedHead()
    assert talk(head, "The capital of France?") == ExitCode.OK
    shown = capsys.readouterr()
    assert shown.out == "Paris.\n\\x1b[2J\n"
    assert "tiny on atlas at http://127.0.0.1:8080" in shown.err
    assert "hm" not in shown.err
    assert head.closed


def test_what_was_asked_for_reaches_the_head(talk):
    head = ScriptedHead()
    talk(head, "Hello", "--system", "Be brief.", "--max-tokens", "7", "--temperature", "0.5")
    asked, = head.asked
    assert asked["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (asked["n_predict"], asked["temperature"]) == (7, 0.5)


@pytest.mark.parametrize(("made_to_chat", "most", "temperature"), [
    (True, MOST_CHAT, None), (False, MOST_CONTINUED, 0.0)])
def test_a_model_that_was_not_made_to_chat_goes_on_for_a_little_and_that_is_said(talk, capsys, made_to_chat, most,
                                                                                  temperature):
    head = ScriptedHead(made_to_chat=made_to_chat)
    talk(head, "Hello")
    assert (head.asked[0]["n_predict"], head.asked[0]["temperature"]) == (most, temperature)
    assert ("was not made to chat" in capsys.readouterr().err) is not made_to_chat


@pytest.mark.parametrize("words", [(), ("-",)])
def test_a_question_can_come_through_a_pipe(talk, words):
    head = ScriptedHead()
    assert talk(head, *words, typed="from a pipe\n") == ExitCode.OK
    assert head.asked[0]["messages"][-1]["content"] == "from a pipe"


def test_the_words_of_a_question_need_no_quotes(talk):
    head = ScriptedHead()
    assert talk(head, "The", "capital", "of", "France?", "--max-tokens", "7") == ExitCode.OK
    assert head.asked[0]["messages"][-1]["content"] == "The capital of France?"


@pytest.mark.parametrize("words", [("",), (" ",), ("--max-tokens", "0", "Hello")])
def test_nothing_to_ask_is_a_usage_error(talk, words):
    head = ScriptedHead()
    try:
        code = talk(head, *words)
    except SystemExit as end:       # what argparse refuses itself
        code = end.code
    assert (code, head.asked) == (ExitCode.USAGE, [])


def test_an_empty_pipe_is_a_usage_error(talk, capsys):
    assert talk(ScriptedHead(), typed=" \n") == ExitCode.USAGE


def test_json_is_one_object_with_the_whole_answer(talk, capsys):
    assert talk(ScriptedHead(), "--json", "Hello") == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert (data["answer"], data["stop"], data["model"], data["timings"]["tokens"]) == (
        "Paris.\n\x1b[2J", "stop", "tiny", 3)


@pytest.mark.parametrize("state", [DeploymentState.DOWN, DeploymentState.LOADING, DeploymentState.BROKEN])
def test_where_nothing_answers_nothing_is_asked(talk, capsys, state):
    head = ScriptedHead()
    assert talk(head, "Hello", state=state) == ExitCode.NOT_THERE
    assert head.asked == []
    assert "No model answers" in capsys.readouterr().err


def test_an_answer_that_breaks_off_is_a_failure_with_what_came_of_it(talk, capsys):
    head = ScriptedHead((Piece("Par"), HeadError("The head broke off.", "See its log.")))
    assert talk(head, "Hello") == ExitCode.FAILED
    shown = capsys.readouterr()
    assert shown.out == "Par"
    assert "The head broke off." in shown.err
    assert head.closed


def test_a_conversation_begins_anew_with_its_system_message():
    conversation = Conversation("Be brief.")
    conversation.say("user", "Hello")
    conversation.start_anew()
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]
