"""A proxy without any file: all that it needs from `QUARTERDECK_*` variables, the way of containers.

`VARIABLES` is the one list of them: the table of the README is `table()`, the Dockerfile names them too, and a test
holds both to it. What a variable may say is what the key of fleet.yaml that it stands for may say, and the same checks
read it: each problem names the variable, and all are told at once.

A key goes into a file (`..._KEY_FILE`, readable by its owner alone) or into a variable, never into a command line.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fleet.config import marks, proxy_section
from fleet.config.form import PROBLEMS_KEPT, Form, Notes, closest
from fleet.config.load import ConfigErrors
from fleet.config.schema import PROXY_PORT, ProxyConfig
from fleet.errors import ConfigError
from fleet.proxy.access import check_bind
from fleet.proxy.exchange import ProxySettings
from fleet.proxy.settings import try_settings
from fleet.speculation.settings import DrafterKind
from fleet.text import visible

PREFIX = "QUARTERDECK_"
VALUE_LIMIT = 64 * 1024      # characters of one variable

# Variables of Quarterdeck that are not the proxy's: no typing errors.
_OTHERS = frozenset(PREFIX + name for name in ("CONFIG", "THEME", "LAB", "GOLDENS", "SWARM_TOKEN", "TIGHTWAD_PYTHON"))


class Writing(StrEnum):
    """How a variable is written."""

    ONE = "one"              # a value
    LIST = "list"            # a,b,c
    PAIRS = "pairs"          # a=b,c=d
    OFF = "off"              # names of switches that are turned off: a,b
    NAME = "name"            # the value is a secret: only the variable's name goes on


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable, and the key of fleet.yaml's section `proxy` that it stands for."""

    name: str
    path: tuple[str, ...]
    meaning: str
    default: str = ""
    writing: Writing = Writing.ONE


def _server(name: str, what: str, *, required: bool = False) -> tuple[Variable, ...]:
    """The variables of one server. Defaults are those of fleet.yaml."""
    at, big = ("upstreams", name.lower()), name.upper()
    return (
        Variable(f"{big}_URL", (*at, "url"), f"{what}: http://HOST:PORT" + (
            "; several with commas, for the same models" if required else ""), "required" if required else "none"),
        Variable(f"{big}_MODEL", (*at, "models"), "models that it serves, with commas", "what it says", Writing.LIST),
        Variable(f"{big}_BACKEND", (*at, "backend"), "llama-server, openai, vllm, ollama or tinytitan", "openai"),
        Variable(f"{big}_KEY", (*at, "key_env"), "the key that it wants", "none", Writing.NAME),
        Variable(f"{big}_KEY_FILE", (*at, "key_file"), "or the path of a file with it", "none"),
        Variable(f"{big}_SLOTS", (*at, "slots"), "requests that it takes at once", "what it says"),
        Variable(f"{big}_LET_FINISH", (*at, "let_it_finish"), "let a request end whose client left", "false"),
    )


VARIABLES: tuple[Variable, ...] = (
    *_server("TARGET", "the server that answers", required=True),
    Variable("TARGET_FIRST_BYTE_TIMEOUT", ("upstreams", "target", "first_byte_timeout"),
             "seconds of a long prompt", "1800"),
    Variable("TARGET_STALL_TIMEOUT", ("upstreams", "target", "stall_timeout"),
             "seconds between two parts of an answer", "300"),
    Variable("SPECULATION", ("upstreams", "target", "speculation", "mode"),
             "auto, strided, injection, native or off: drafts before the target, which is a llama-server then", "none"),
    *_server("DRAFT", "a second, small server, asked for by the name of its model; it drafts where that is on"),
    Variable("LISTEN", ("listen",), "HOST:PORT to listen on", f"127.0.0.1:{PROXY_PORT}"),
    Variable("KEY", ("keys_env",), "keys of clients, with ; between: KEY, or NAME KEY models=a,b "
             "requests_a_minute=60 concurrent=2", "none", Writing.NAME),
    Variable("KEY_FILE", ("keys_file",), "or the path of a file with one such key a line, mode 0600", "none"),
    Variable("ALLOW_OPEN", ("allow_open",), "listen beyond loopback without a key", "false"),
    Variable("ALIASES", ("aliases",), "names that clients use: NAME=MODEL, with commas", "none", Writing.PAIRS),
    Variable("DEFAULT_MODEL", ("default_model",), "the model of requests that name none", "the only one"),
    Variable("CORS", ("cors",), "web origins whose pages may use it, with commas", "none", Writing.LIST),
    Variable("NAMES", ("names",), "further host names that clients call it by, with commas", "none", Writing.LIST),
    Variable("MAX_BODY", ("limits", "body"), "size of a request", "64MiB"),
    Variable("MAX_HEAD", ("limits", "head"), "size of its headers", "64KiB"),
    Variable("MAX_CONNECTIONS", ("limits", "connections"), "connections of all clients", "4096"),
    Variable("HOLD_COUNT", ("hold", "count"), "requests that may wait", "1024"),
    Variable("HOLD_SIZE", ("hold", "size"), "size of what waits", "256MiB"),
    Variable("HOLD_SECONDS", ("hold", "seconds"), "seconds that one may wait", "600"),
    Variable("KEEP_ALIVE", ("hold", "keep_alive"), "seconds between two comments to who waits; 0 = none", "10"),
    Variable("NO_KEEP_ALIVE", ("hold", "no_keep_alive_agents"), "user agents that get none, with commas", "none",
             Writing.LIST),
    Variable("RETRIES", ("retries",), "tries on other servers", "2"),
    Variable("REPAIR_OFF", ("repair",), "repairs that are left out, with commas: "
             + ", ".join(proxy_section.REPAIR_KEYS), "none", Writing.OFF),
    Variable("RECORDS", ("records",), "requests that are remembered", "1000"),
    Variable("KEEP_BODIES", ("keep_bodies",), "remember what was asked", "false"),
)
_BY_NAME = {PREFIX + variable.name: variable for variable in VARIABLES}


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """What the environment says. `warnings`: variables that nobody reads, and what was probably meant."""

    settings: ProxySettings
    warnings: tuple[str, ...] = ()


def is_configured(env: Environment[str, str]) -> bool:
    """The environment names a server: a proxy was meant to be configured by it."""
    return bool(env.get(f"{PREFIX}TARGET_URL", "").strip())


def from_environment(env: Environment[str, str], *, control_file: str = "") -> FromEnvironment:
    """The settings that `QUARTERDECK_*` variables make.

    Raises:
        ConfigErrors: with every variable that is wrong: which, why, and what it should be.
    """
    notes = _VariableNotes("environment")
    config = _config(env, notes)
    settings, wrong = try_settings(config, env, control_file=control_file)
    problems = [*notes.lines(), *(f"{error.what} {error.remedy}" for error in wrong)]
    if not problems:
        try:
            check_bind(settings.host, bool(settings.keys), settings.allow_open)
        except ConfigError as error:
            problems.append(f"{PREFIX}LISTEN: {error}")
    if problems:
        raise ConfigErrors("The environment", tuple(problems), "Correct these variables and start again.")
    return FromEnvironment(settings, _warnings(env))


def table() -> str:
    """The table of all variables, in Markdown."""
    rows = [f"| `{PREFIX}{variable.name}` | {variable.meaning} | {variable.default} |" for variable in VARIABLES]
    return "\n".join(("| variable | meaning | default |", "| --- | --- | --- |", *rows))


# ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _VariableNotes(Notes):
    """Problems by the variable that they are in; its place in `VARIABLES` stands for the line of a file."""

    named: dict[int, str] = field(default_factory=dict)

    def add(self, line: int, key: str, what: str, expected: str) -> None:
        stop = "" if what.endswith("?") else "."
        entry = (line, f"{self.named.get(line, key)}: {what}{stop} Expected {expected}")
        if entry not in self.found:
            self.found.append(entry)

    def lines(self) -> tuple[str, ...]:
        return tuple(text for _, text in sorted(self.found, key=lambda entry: entry[0])[:PROBLEMS_KEPT])


def _config(env: Environment[str, str], notes: _VariableNotes) -> ProxyConfig:
    """The variables as the section `proxy` of a fleet.yaml that says the same, read by its own checks."""
    root = marks.Mapping(0)
    for line, variable in enumerate(VARIABLES, 1):
        name = PREFIX + variable.name
        written = env.get(name, "").strip()
        if not written:
            continue
        notes.named[line] = name
        if len(written) > VALUE_LIMIT:
            notes.add(line, "", f"this is longer than {VALUE_LIMIT} characters", variable.meaning)
            continue
        value = _value(variable, written, line, notes)
        at = root
        for key in variable.path[:-1]:
            inner = at.entries.setdefault(key, marks.Mapping(line))
            at.lines.setdefault(key, line)
            assert isinstance(inner, marks.Mapping)
            at = inner
        at.entries[variable.path[-1]] = value
        at.lines[variable.path[-1]] = line
    _without_url(root, notes)
    _drafts(root)
    config = _several_targets(root, notes)
    if config.keys_file and config.keys_env:
        notes.add(0, f"{PREFIX}KEY_FILE", f"{PREFIX}KEY is set too", "one of the two")
    return config


def _without_url(root: marks.Mapping, notes: _VariableNotes) -> None:
    """A target has to be there; a draft server has to have a URL where anything is said of it."""
    upstreams = root.entries.get("upstreams", marks.Mapping(0))
    assert isinstance(upstreams, marks.Mapping)
    for name in ("target", "draft"):
        server = upstreams.entries.get(name)
        if (server is None and name == "draft") or (isinstance(server, marks.Mapping) and "url" in server.entries):
            continue
        upstreams.entries.pop(name, None)
        notes.add(0, f"{PREFIX}{name.upper()}_URL", "this is not set", proxy_section.URL_EXPECTED)


def _drafts(root: marks.Mapping) -> None:
    """With speculation the target is a llama-server, and the draft server one of its drafters."""
    upstreams = root.entries.get("upstreams", marks.Mapping(0))
    assert isinstance(upstreams, marks.Mapping)
    target, draft = upstreams.entries.get("target"), upstreams.entries.get("draft")
    if not isinstance(target, marks.Mapping) or not isinstance(
            speculation := target.entries.get("speculation"), marks.Mapping):
        return
    for server in (target, draft):
        if isinstance(server, marks.Mapping) and "backend" not in server.entries:
            server.entries["backend"] = marks.Scalar(server.line, DrafterKind.LLAMA_SERVER)
            server.lines["backend"] = server.line
    backend = draft.entries["backend"] if isinstance(draft, marks.Mapping) else None
    if not isinstance(draft, marks.Mapping) or not isinstance(backend, marks.Scalar) \
            or backend.text.lower() not in (DrafterKind.LLAMA_SERVER, DrafterKind.OLLAMA):
        return
    drafter, drafters = marks.Mapping(draft.line), marks.Mapping(draft.line)
    for key in ("url", "backend", "key_file", "key_env"):
        if key in draft.entries:
            drafter.entries[key], drafter.lines[key] = draft.entries[key], draft.lines[key]
    models = draft.entries.get("models")
    if isinstance(models, marks.Sequence) and models.items:
        drafter.entries["model"], drafter.lines["model"] = models.items[0], draft.lines["models"]
    drafters.entries["draft"] = drafter
    speculation.entries["drafters"] = drafters
    for mapping, key in ((drafters, "draft"), (speculation, "drafters")):
        mapping.lines[key] = draft.line


def _several_targets(root: marks.Mapping, notes: _VariableNotes) -> ProxyConfig:
    """Several URLs, with commas, are several servers that are otherwise alike."""
    upstreams = root.entries.get("upstreams")
    target = upstreams.entries.get("target") if isinstance(upstreams, marks.Mapping) else None
    url = target.entries.get("url") if isinstance(target, marks.Mapping) else None
    urls = [part.strip() for part in url.text.split(",") if part.strip()] if isinstance(url, marks.Scalar) else []
    if isinstance(url, marks.Scalar) and isinstance(target, marks.Mapping) and urls:
        target.entries["url"] = marks.Scalar(url.line, urls[0])
    config = proxy_section.proxy(Form(notes, "", 0, root if root.entries else None))
    first = config.upstreams.get("target")
    more = {}
    for place, other in enumerate(urls[1:], 2):
        if why := proxy_section.why_no_url(other):
            notes.add(url.line if url is not None else 0, "", why, proxy_section.URL_EXPECTED)
        elif first is not None:
            more[f"target-{place}"] = replace(first, name=f"target-{place}", url=other)
    return replace(config, upstreams={**config.upstreams, **more}) if more else config


def _value(variable: Variable, written: str, line: int, notes: _VariableNotes) -> marks.Value:
    match variable.writing:
        case Writing.LIST:
            return marks.Sequence(line, [marks.Scalar(line, part) for part in _parts(written)])
        case Writing.PAIRS:
            pairs = marks.Mapping(line)
            for part in _parts(written):
                name, equals, model = part.partition("=")
                if not equals or not name.strip() or not model.strip():
                    notes.add(line, "", f"'{visible(part, limit=60)}' is no pair", variable.meaning)
                    continue
                pairs.entries[name.strip()] = marks.Scalar(line, model.strip())
                pairs.lines[name.strip()] = line
            return pairs
        case Writing.OFF:
            switches = marks.Mapping(line)
            for part in _parts(written):
                if part not in proxy_section.REPAIR_KEYS:
                    near = closest(part, proxy_section.REPAIR_KEYS)
                    notes.add(line, "", f"there is no repair '{visible(part, limit=60)}'"
                              + (f"; did you mean {near!r}?" if near else ""), variable.meaning)
                    continue
                switches.entries[part] = marks.Scalar(line, "false")
                switches.lines[part] = line
            return switches
        case Writing.NAME:
            return marks.Scalar(line, PREFIX + variable.name)
    return marks.Scalar(line, written)


def _parts(written: str) -> list[str]:
    return [part.strip() for part in written.split(",") if part.strip()]


def _warnings(env: Environment[str, str]) -> tuple[str, ...]:
    """Variables of our prefix that nobody reads: most are typing errors."""
    warnings = []
    for name in sorted(env):
        if not name.startswith(PREFIX) or name in _BY_NAME or name in _OTHERS:
            continue
        near = closest(name.removeprefix(PREFIX), (variable.name for variable in VARIABLES))
        warnings.append(f"{visible(name, limit=80)} is not a variable that Quarterdeck knows"
                        + (f"; did you mean {PREFIX}{near}?" if near else "."))
    return tuple(warnings[:PROBLEMS_KEPT])
