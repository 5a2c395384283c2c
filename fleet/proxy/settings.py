"""What fleet.yaml or the environment says of the proxy, with its secrets read: what a proxy runs on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleet.config.schema import DrafterConfig, ProxyConfig, SpeculationConfig, UpstreamConfig
from fleet.discovery.addresses import split_host_port
from fleet.errors import ConfigError
from fleet.proxy.access import Key
from fleet.proxy.exchange import ProxySettings, UpstreamSettings
from fleet.proxy.keys import parse_keys, read_keys, read_secret
from fleet.speculation.settings import DrafterSettings, SpeculationSettings


def settings_of(config: ProxyConfig, env: Mapping[str, str], *, control_file: str = "") -> ProxySettings:
    """The settings of a proxy. Key files are read here, on the machine that the proxy runs on.

    Args:
        env: the environment, for `keys_env`, `key_env` and ~ in paths.
        control_file: where the control token is to lie; "" = no control over HTTP.

    Raises:
        ConfigError: a key file or a variable cannot be used; with everything that is wrong with them.
    """
    settings, wrong = try_settings(config, env, control_file=control_file)
    if wrong:
        raise ConfigError(" ".join(error.what for error in wrong), " ".join(
            dict.fromkeys(error.remedy for error in wrong)), code="keys")
    return settings


def try_settings(config: ProxyConfig, env: Mapping[str, str], *,
                 control_file: str = "") -> tuple[ProxySettings, list[ConfigError]]:
    """As `settings_of`, with the errors beside it: they can be told together with others."""
    wrong: list[ConfigError] = []
    host, port = split_host_port(config.listen) or ("127.0.0.1", None)
    keys: tuple[Key, ...] = ()
    try:
        keys = _keys(config, env)
    except ConfigError as error:
        wrong.append(error)
    upstreams: list[UpstreamSettings] = []
    for upstream in config.upstreams.values():
        try:
            upstreams.append(_upstream(upstream, env))
        except ConfigError as error:
            wrong.append(error)
    return ProxySettings(
        host=host, port=port or 8088, upstreams=tuple(upstreams), aliases=dict(config.aliases),
        default_model=config.default_model, keys=keys, allow_open=config.allow_open, cors_origins=config.cors,
        names=config.names, limits=config.limits, hold=config.hold, repair=config.repair, retries=config.retries,
        records=config.records,
        keep_bodies=config.keep_bodies, control_file=control_file), wrong


def _keys(config: ProxyConfig, env: Mapping[str, str]) -> tuple[Key, ...]:
    if config.keys_file:
        return read_keys(_path(config.keys_file, env))
    if not config.keys_env:
        return ()
    # One line of a variable holds several keys with ; between them: an env file knows no line breaks.
    return parse_keys(_variable(config.keys_env, env).replace(";", "\n"), f"${config.keys_env}")


def _upstream(config: UpstreamConfig, env: Mapping[str, str]) -> UpstreamSettings:
    key = _key(config.key_file, config.key_env, env)
    return UpstreamSettings(
        name=config.name, url=config.url, backend=config.backend, models=config.models, key=key, slots=config.slots,
        weight=config.weight, let_finish=config.let_it_finish, connect_timeout=config.connect_timeout,
        first_byte_timeout=config.first_byte_timeout, stall_timeout=config.stall_timeout, group=config.group,
        speculation=speculation_of(config.speculation, env))


def speculation_of(config: SpeculationConfig | None, env: Mapping[str, str]) -> SpeculationSettings | None:
    """What is said of speculation, with the drafters' keys. Raises ConfigError where a key cannot be read."""
    if config is None:
        return None
    return SpeculationSettings(
        config.mode, tuple(_drafter(drafter, env) for drafter in config.drafters.values()), config.ngram,
        config.draft_length, config.stride, config.deadline, config.grace, config.grace_text, config.look_ahead,
        config.honesty)


def _drafter(config: DrafterConfig, env: Mapping[str, str]) -> DrafterSettings:
    return DrafterSettings(config.name, config.url, config.backend, config.model,
                           _key(config.key_file, config.key_env, env))


def _key(key_file: str, key_env: str, env: Mapping[str, str]) -> str:
    """The key of a server, "" where it wants none."""
    if key_file:
        return read_secret(_path(key_file, env))
    if not key_env:
        return ""
    key = _variable(key_env, env).strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"The variable {key_env} holds something that no HTTP header can carry as a key.",
                          "Put the key of the server into it, and nothing else.", code="keys")
    return key


def _variable(name: str, env: Mapping[str, str]) -> str:
    found = env.get(name, "")
    if not found.strip():
        raise ConfigError(f"The variable {name} is not set, and a key was to be in it.",
                          f"Set {name}, or name another one.", code="keys")
    return found


def _path(written: str, env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    return Path(home, written[2:]) if written.startswith("~/") and home else Path(written)
