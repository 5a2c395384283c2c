"""Flags for heads whose continuations are asked for several at once, and who gets them."""

from __future__ import annotations

import pytest

from fleet.config.load import ConfigErrors, parse
from fleet.config.speculation_section import STRIDED_SLOTS
from fleet.errors import PlanRefused
from fleet.model import Link
from fleet.planning.injection_flags import has_pool, injection_flags, pool_pays
from fleet.planning.strided_flags import strided_flags
from fleet.planning.wire import WireChoice, wire_flags
from fleet.runtimes.binaries import Flags
from tests.unit.test_wire import HELP, model

MORE = HELP + """
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
--cache-idle-slots, --no-cache-idle-slots
                                        save and clear idle slots
"""
OLD = Flags.parse(MORE)
NEW = Flags.parse(MORE + "-lm, --load-mode MODE                   how to load\n")
NEAR, FAR = Link(0.0001, 110e6), Link(0.010, 40e6)


def test_a_head_alone_gets_what_rounds_need_and_a_reason_for_each() -> None:
    choice = strided_flags(model(), [], OLD, WireChoice())
    assert choice.argv == ("-kvu", "--no-cache-idle-slots", "-ctxcp", "0", "--swa-full")
    assert len(choice.reasons) == 3


def test_what_was_chosen_for_the_wire_is_not_said_twice() -> None:
    wire = wire_flags(model(), [FAR], OLD, context=4096)
    choice = strided_flags(model(), [FAR], OLD, wire)
    assert choice.argv == (*wire.argv, "-kvu", "--no-cache-idle-slots") and choice.output_on_head


def test_flash_attention_goes_off_over_a_network_with_builds_that_forget_sizes() -> None:
    for flags, links, wanted in ((OLD, [FAR], True), (NEW, [FAR], False), (OLD, [NEAR], False), (OLD, [], False)):
        argv = strided_flags(model(), links, flags, WireChoice()).argv
        assert ("-fa" in argv) is wanted
    assert "-fa" not in strided_flags(model(), [FAR], OLD, WireChoice(), kv_type_v="q8_0").argv
    assert "-fa" not in strided_flags(model(), [FAR], OLD, WireChoice(), flash_attention="on").argv


def test_what_the_user_says_is_left_to_them_and_what_the_build_lacks_left_out() -> None:
    argv = strided_flags(model(), [], OLD, WireChoice(), given=("-no-kvu", "--cache-idle-slots", "--swa-full")).argv
    assert argv == ()
    assert strided_flags(model(), [], Flags.parse("-c, --ctx-size N    size\n"), WireChoice()).argv == ()
    assert "--swa-full" not in strided_flags(model(), [], OLD, WireChoice(), room_for_full_window=False).argv


def test_a_model_without_a_window_keeps_its_small_cache() -> None:
    argv = strided_flags(model("llama"), [], OLD, WireChoice()).argv
    assert "-kvu" in argv


def test_a_pool_for_injected_drafts_is_had_where_the_build_has_it() -> None:
    pool = Flags.parse(MORE + "--spec-type TYPES                       types\n"
                       "--spec-ngram-mod-n-match N              lookup length\n")
    wire = WireChoice(("-kvu",), ("One cache.",))
    choice = injection_flags(pool, wire)
    assert choice.argv == ("-kvu", "--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "6",
                           "--spec-ngram-mod-n-min", "2", "--spec-ngram-mod-n-max", "16")
    assert len(choice.reasons) == 2
    assert injection_flags(pool, wire, given=("--spec-type", "ngram-cache")) == wire
    with pytest.raises(PlanRefused, match="no ngram-mod"):
        injection_flags(OLD, wire)
    assert has_pool(pool) and not has_pool(OLD)


def test_the_pool_pays_where_a_token_is_mostly_network() -> None:
    assert pool_pays(0.134, 0.100)
    assert not pool_pays(0.082, 0.040) and not pool_pays(0.030, 0.0) and not pool_pays(0.0, 0.0)


def test_a_model_with_speculation_gets_slots_unless_the_user_says_how_many() -> None:
    def one(more: str) -> object:
        return parse(f"models: {{m: {{file: /m.gguf, {more}}}}}").models["m"]

    assert one("speculation: auto").slots == STRIDED_SLOTS
    assert one("speculation: {mode: strided}, slots: 5").slots == 5
    assert one("speculation: injection").slots == STRIDED_SLOTS
    assert one("speculation: off").slots is None and one("workers: []").slots is None


@pytest.mark.parametrize(("text", "told"), [
    ("speculation: fast", "Expected one of auto, off, strided, injection, native"),
    ("speculation: {mod: auto}", "did you mean 'mode'?"),
    ("speculation: {draft_length: 0}", "0 is out of range"),
    ("speculation: {honesty: 2}", "out of range"),
    ("speculation: {drafters: {a: {}}}", "drafters.a: 'url' is missing."),
    ("speculation: {drafters: {a: {url: 'http://u:p@b'}}}", "belongs into `key_file`"),
    ("speculation: {drafters: {a: {url: 'http://b', backend: ollama}}}", "'model' is missing"),
    ("speculation: {drafters: {a: {url: 'http://b', backend: vllm}}}", "drafters.a.backend"),
    ("speculation: {drafters: {a: {url: 'http://b', key_env: A, key_file: b}}}", "both 'key_file' and 'key_env'"),
    ("speculation: auto, backend: openai", "cannot verify drafts"),
])
def test_what_is_wrong_with_it_is_said(text: str, told: str) -> None:
    for outer in (f"proxy: {{upstreams: {{a: {{url: 'http://x', {text}}}}}}}",
                  f"models: {{m: {{file: /m.gguf, {text}}}}}"):
        if told == "cannot verify drafts" and outer.startswith("models"):
            continue
        with pytest.raises(ConfigErrors) as caught:
            parse(outer)
        assert any(told in problem for problem in caught.value.problems), caught.value.problems
        assert "u:p" not in str(caught.value.problems)
