"""The command line: what it takes, what it refuses, what its help tells."""

import pytest

from app.arguments import build_parser
from app.exit_codes import MEANINGS, ExitCode

VERBS = ("demo", "init", "nodes", "up", "down", "status", "logs", "chat", "start", "stop", "restart", "doctor",
         "completion")


def parse(*words: str):
    return build_parser().parse_args(words)


def test_no_verb_means_the_cockpit():
    assert parse().verb is None


@pytest.mark.parametrize("words", [("--config", "a.yaml", "status", "--json"),
                                   ("status", "--json", "--config", "a.yaml"),
                                   ("--json", "--config", "a.yaml", "status")])
def test_common_options_stand_before_or_after_the_verb(words):
    options = parse(*words)
    assert (options.verb, options.config, options.json) == ("status", "a.yaml", True)


def test_what_stands_after_the_verb_wins():
    assert parse("--config", "a.yaml", "up", "--config", "b.yaml").config == "b.yaml"


def test_one_word_for_logs_is_the_service():
    options = parse("logs", "coordinator-8080", "-n", "5")
    assert (options.node, options.service, options.lines) == (None, "coordinator-8080", 5)


def test_two_words_for_logs_are_node_and_service():
    options = parse("logs", "atlas", "worker-50052", "-f")
    assert (options.node, options.service, options.follow) == ("atlas", "worker-50052", True)


def test_keep_up_without_a_name_is_the_fleets_own_model():
    assert parse("--no-ui", "--up").up == ""
    assert parse("--no-ui", "--up", "tiny").up == "tiny"
    assert parse("--no-ui").up is None


@pytest.mark.parametrize("words", [("--rate", "0"), ("--rate", "fast"), ("--rate", "nan"),
                                   ("chat", "--temperature", "9"), ("chat", "--temperature", "nan"),
                                   ("chat", "--max-tokens", "-3"),
                                   ("logs", "x", "-n", "²"), ("sing",), ("completion", "csh")])
def test_a_wrong_word_is_a_usage_error_in_one_sentence(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert ended.value.code == ExitCode.USAGE
    assert "error:" in capsys.readouterr().err


def test_help_names_every_verb_and_every_exit_code():
    text = build_parser().format_help()
    assert all(f"\n    {verb} " in text for verb in VERBS)
    assert set(MEANINGS) == set(ExitCode)
    assert all(f"{code.value:>3}  {meaning}" in text for code, meaning in MEANINGS.items())


def test_every_verb_has_its_module():
    from importlib import import_module

    assert all(callable(import_module(f"app.verbs.{verb}").run) for verb in VERBS)
