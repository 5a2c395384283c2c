"""The section `proxy` of fleet.yaml: what it may say, and what is said about one that says something else."""

from __future__ import annotations

import pytest

from fleet.config.load import ConfigErrors, parse
from fleet.config.schema import ProxyConfig, UpstreamConfig
from fleet.proxy.exchange import BackendKind, HoldSettings, RepairSettings


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigErrors) as caught:
        parse(text)
    return caught.value.problems


def test_a_section_becomes_its_records() -> None:
    proxy = parse("""\
proxy:
  listen: 10.0.0.1:9000
  enabled: yes
  keys_env: PROXY_KEYS
  upstreams:
    tower: {url: http://10.0.0.4:11434, backend: OLLAMA, models: small, key_env: TOWER_KEY, let_it_finish: on}
    rented: {url: https://llm.example/api, key_file: ~/key, slots: 3}
  aliases: {gpt-4o: small, other: gpt-4o}
  cors: https://chat.example
  hold: {count: 0, size: 1MiB, keep_alive: 0}
  limits: {body: 1MiB}
  repair: {usage: no}
""").proxy
    assert (proxy.listen, proxy.enabled, proxy.keys_env, proxy.cors) == (
        "10.0.0.1:9000", True, "PROXY_KEYS", ("https://chat.example",))
    assert proxy.upstreams["tower"] == UpstreamConfig("tower", "http://10.0.0.4:11434", BackendKind.OLLAMA, ("small",),
                                                      key_env="TOWER_KEY", let_it_finish=True)
    assert proxy.upstreams["rented"].slots == 3 and proxy.upstreams["rented"].backend is BackendKind.OPENAI
    assert proxy.hold == HoldSettings(count=0, size=1 << 20, keep_alive=0) and proxy.limits.body == 1 << 20
    assert proxy.repair == RepairSettings(usage=False)


def test_repair_is_switched_off_by_one_word() -> None:
    repair = parse("proxy: {repair: off}").proxy.repair
    assert not any((repair.usage, repair.done, repair.broken, repair.line_ends))
    assert parse("proxy: {repair: on}").proxy == parse("proxy:").proxy == ProxyConfig()


@pytest.mark.parametrize(("text", "told"), [
    ("listen: 8088", "fleet.yaml:1: proxy.listen: '8088' is no host and port."),
    ("lisen: a", "fleet.yaml:1: proxy.lisen: unknown key; did you mean 'listen'?"),
    ("upstreams: {a: {}}", "proxy.upstreams.a: 'url' is missing."),
    ("upstreams: {a: {url: 'ftp://b'}}", "proxy.upstreams.a.url: 'ftp://b' is no http:// or https:// URL."),
    ("upstreams: {a: {url: 'http://b:1?x=1'}}", "more than a host, a port and a path"),
    ("upstreams: {a: {url: 'http://b:99999'}}", "this is no URL"),
    ("upstreams: {a: {url: 'http://b', bakend: vllm}}", "did you mean 'backend'?"),
    ("upstreams: {a: {url: 'http://b', backend: vlm}}", "did you mean 'vllm'?"),
    ("upstreams: {a: {url: 'http://b', key_env: A, key_file: b}}", "both 'key_file' and 'key_env' are here."),
    ("upstreams: {a: {url: 'http://b'}, c: {url: 'HTTP://B/v1'}}", "upstreams.c.url: this is the URL of 'a' too."),
    ("upstreams: {a: {url: 'http://b', slots: 0}}", "proxy.upstreams.a.slots: 0 is out of range."),
    ("aliases: {a: b, b: a}", "proxy.aliases.a: this alias leads back to itself."),
    ("cors: [example.org]", "proxy.cors: 'example.org' is no origin."),
    ("names: [http://a]", "proxy.names: 'http://a' is no host name."),
    ("hold: {second: 5}", "did you mean 'seconds'?"),
    ("limits: {body: 1}", "proxy.limits.body: 1 bytes is out of range"),
    ("repair: {usage: 3}", "proxy.repair.usage: this is '3'."),
    ("listen: '0.0.0.0:8088'", "everybody who reaches 0.0.0.0:8088 could use the proxy"),
    ("keys_env: A\n  keys_file: b", "fleet.yaml:2: proxy.keys_env: both 'keys_file' and 'keys_env' are here."),
])
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    found = problems("proxy:\n  " + text if "\n" in text else f"proxy: {{{text}}}")
    assert len(found) == (2 if "aliases" in text else 1) and told in found[0]


@pytest.mark.parametrize("text", [
    "keys_env: sk-very-secret", "upstreams: {a: {url: 'http://b', key_env: sk-very-secret}}",
    "upstreams: {a: {url: 'http://me:sk-very-secret@b'}}"])
def test_a_secret_in_the_wrong_place_is_not_repeated(text: str) -> None:
    assert "very-secret" not in "".join(problems(f"proxy: {{{text}}}"))


def test_beyond_loopback_is_fine_with_a_key_or_a_word() -> None:
    for more in ("keys_file: a", "keys_env: A", "allow_open: true"):
        assert parse(f"proxy: {{listen: '0.0.0.0:1', {more}}}").proxy.listen == "0.0.0.0:1"
