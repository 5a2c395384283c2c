"""The section `proxy` of fleet.yaml, into its records. `fleet.proxy.environment` reads the same from variables."""

from __future__ import annotations

from dataclasses import fields

from fleet.config.fields import boolean, choice, integer, mapping, number, printable, size, word, words
from fleet.config.form import Form, Section
from fleet.config.marks import Scalar
from fleet.config.schema import ProxyConfig, SpeculationConfig, UpstreamConfig
from fleet.config.speculation_section import speculation
from fleet.config.urls import URL_EXPECTED, variable, why_no_url
from fleet.discovery.addresses import split_host_port
from fleet.proxy.exchange import BackendKind, HoldSettings, Limits, RepairSettings
from fleet.speculation.settings import SpeculationMode

PROXY_KEYS = ("listen", "enabled", "keys_file", "keys_env", "allow_open", "upstreams", "aliases", "default_model",
              "cors", "names", "hold", "limits", "repair", "retries", "records", "keep_bodies")
UPSTREAM_KEYS = ("url", "backend", "models", "group", "key_file", "key_env", "slots", "weight", "let_it_finish",
                 "connect_timeout", "first_byte_timeout", "stall_timeout", "speculation")
HOLD_KEYS = tuple(entry.name for entry in fields(HoldSettings))
LIMIT_KEYS = tuple(entry.name for entry in fields(Limits))
REPAIR_KEYS = tuple(entry.name for entry in fields(RepairSettings))

LISTEN_EXPECTED = "host:port, for example 127.0.0.1:8088"


def proxy(form: Form) -> ProxyConfig:
    """The whole section."""
    section = Section(form, PROXY_KEYS, "a mapping with keys such as listen, enabled and upstreams")
    default = ProxyConfig()
    listen = word(section["listen"], default.listen, LISTEN_EXPECTED)
    if (split_host_port(listen) or ("", None))[1] is None:
        section["listen"].wrong(f"'{listen[:60]}' is no host and port", LISTEN_EXPECTED)
        listen = default.listen
    return ProxyConfig(
        listen=listen,
        enabled=boolean(section["enabled"], default.enabled),
        keys_file=word(section["keys_file"], "", "the path of a file with the clients' keys"),
        keys_env=variable(section["keys_env"]),
        allow_open=boolean(section["allow_open"], default.allow_open),
        upstreams=mapping(section["upstreams"], _upstream,
                          "names of servers with their settings, for example {tower: {url: http://10.0.0.4:8080}}"),
        aliases=mapping(section["aliases"], lambda part: word(part, "", "the name of a model") or None,
                        "names with the model that each stands for, for example {gpt-4o: big}"),
        default_model=word(section["default_model"], "", "the name of a model"),
        cors=_origins(section["cors"]),
        names=_names(section["names"]),
        hold=_hold(section["hold"]),
        limits=_limits(section["limits"]),
        repair=_repair(section["repair"]),
        retries=integer(section["retries"], default.retries, 0, 10, "a number of tries from 0 to 10"),
        records=integer(section["records"], default.records, 0, 100_000, "a number of requests up to 100000"),
        keep_bodies=boolean(section["keep_bodies"], default.keep_bodies),
    )


def _upstream(form: Form) -> UpstreamConfig:
    section = Section(form, UPSTREAM_KEYS, "a mapping with at least `url`")
    default = UpstreamConfig(form.name, "")
    url = word(section["url"], "", URL_EXPECTED)
    if not section["url"].written:
        form.wrong("'url' is missing", URL_EXPECTED)
    elif why := why_no_url(url):
        section["url"].wrong(why, URL_EXPECTED)
    if section["key_file"].written and section["key_env"].written:
        section["key_env"].wrong("both 'key_file' and 'key_env' are here", "one of the two")
    seconds = "seconds between 0.1 and 86400"
    usual = BackendKind.LLAMA_SERVER if section["speculation"].written else default.backend
    backend = choice(section["backend"], BackendKind, usual)
    return UpstreamConfig(
        name=form.name,
        url=url,
        backend=backend,
        models=words(section["models"], "names of models, for example [small, big]"),
        group=word(section["group"], "", "a name that several servers share"),
        key_file=word(section["key_file"], "", "the path of a file with the key that this server wants"),
        key_env=variable(section["key_env"]),
        slots=integer(section["slots"], None, 1, 100_000, "a number of requests at once"),
        weight=number(section["weight"], default.weight, 0.001, 1000, "a share above 0, for example 2"),
        let_it_finish=boolean(section["let_it_finish"], default.let_it_finish),
        connect_timeout=number(section["connect_timeout"], default.connect_timeout, 0.1, 600,
                               "seconds between 0.1 and 600"),
        first_byte_timeout=number(section["first_byte_timeout"], default.first_byte_timeout, 0.1, 86400, seconds),
        stall_timeout=number(section["stall_timeout"], default.stall_timeout, 0.1, 86400, seconds),
        speculation=_speculation(section["speculation"], backend),
    )


def _speculation(form: Form, backend: BackendKind) -> SpeculationConfig | None:
    found = speculation(form)
    if found is not None and backend is not BackendKind.LLAMA_SERVER and found.mode is not SpeculationMode.OFF:
        form.wrong(f"a server of the kind {backend} cannot verify drafts",
                   "`backend: llama-server`, or no `speculation`")
    return found


def _origins(form: Form) -> tuple[str, ...]:
    expected = "web origins, for example [https://chat.example], or [\"*\"] for all"
    found = words(form, expected)
    for origin in found:
        parts = origin.partition("://")
        if origin != "*" and (not parts[1] or not parts[2] or "/" in parts[2] or not printable(origin)):
            form.wrong(f"'{origin[:60]}' is no origin", expected)
    return found


def _names(form: Form) -> tuple[str, ...]:
    expected = "host names that clients call it by, for example [llm.home.arpa]"
    found = words(form, expected)
    for name in found:
        if not printable(name) or not name.isascii() or set(name) & set(":/@ ") or len(name) > 253:
            form.wrong(f"'{name[:60]}' is no host name", expected)
    return found


def _hold(form: Form) -> HoldSettings:
    section = Section(form, HOLD_KEYS, "a mapping with keys such as count, size and seconds")
    default = HoldSettings()
    return HoldSettings(
        count=integer(section["count"], default.count, 0, 1_000_000, "a number of requests; 0 holds none"),
        size=size(section["size"], default.size, 0),
        seconds=number(section["seconds"], default.seconds, 0, 86400, "seconds up to 86400"),
        gone_seconds=number(section["gone_seconds"], default.gone_seconds, 0, 86400, "seconds up to 86400"),
        keep_alive=number(section["keep_alive"], default.keep_alive, 0, 3600, "seconds up to 3600; 0 sends none"),
        no_keep_alive_agents=words(section["no_keep_alive_agents"], "parts of user agents, for example [OldClient/1]"),
    )


def _limits(form: Form) -> Limits:
    section = Section(form, LIMIT_KEYS, "a mapping with keys such as body and connections")
    default = Limits()
    seconds = "seconds between 0.1 and 86400"
    return Limits(
        body=size(section["body"], default.body, 1024),
        head=size(section["head"], default.head, 1024),
        connections=integer(section["connections"], default.connections, 1, 1_000_000, "a number of connections"),
        body_timeout=number(section["body_timeout"], default.body_timeout, 0.1, 86400, seconds),
        head_timeout=number(section["head_timeout"], default.head_timeout, 0.1, 86400, seconds),
        write_timeout=number(section["write_timeout"], default.write_timeout, 0.1, 86400, seconds),
    )


def _repair(form: Form) -> RepairSettings:
    """`repair: {usage: false}`, or one word for all: `repair: off`."""
    if isinstance(form.value, Scalar):
        return RepairSettings(**dict.fromkeys(REPAIR_KEYS, boolean(form, True)))
    section = Section(form, REPAIR_KEYS, "true, false, or a mapping with keys such as usage")
    return RepairSettings(**{name: boolean(section[name], True) for name in REPAIR_KEYS})
