"""The machines that ~/.ssh/config names, each with its host, port, user, keys and hops resolved.

A file that is broken or cannot be read gives warnings, never an error. Nothing of the file is run:
a block under `Match exec` does not apply, and a warning names the command.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fleet.discovery.addresses import split_host_port
from fleet.discovery.sightings import Sighting, Source
from fleet.discovery.ssh_lines import File, Files, Line, all_lines, matches
from fleet.model import Address
from fleet.ownership import why_not_ours

ALIASES_KEPT = 500
HOPS_KEPT = 8
SSH_PORT = 22

_GIT_HOSTS = frozenset((
    "github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "sr.ht", "gitea.com", "ssh.dev.azure.com",
    "vs-ssh.visualstudio.com", "huggingface.co", "hf.co", "aur.archlinux.org", "salsa.debian.org",
    "gitlab.gnome.org", "gitlab.freedesktop.org", "git.kernel.org", "source.developers.google.com"))
_CONDITIONS = frozenset(("host", "originalhost", "user", "localuser"))
_FIRST_WINS = frozenset(("hostname", "user", "port", "stricthostkeychecking", "hostkeyalias", "identitiesonly"))
_TOKEN = re.compile(r"%(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Hop:
    """One host on the way to another."""

    name: str                          # as ProxyJump names it
    host: str
    port: int
    user: str                          # "" = the one who runs this
    identity_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """One concrete `Host` of ssh_config."""

    name: str
    host: str
    port: int = SSH_PORT
    user: str = ""                     # "" = not said
    identity_files: tuple[str, ...] = ()
    proxy_jump: str = ""               # as written, tokens filled in; "" = none
    hops: tuple[Hop, ...] = ()         # the same resolved, nearest first, no hop twice
    proxy_command: str = ""            # as written
    host_key_policy: str = ""          # StrictHostKeyChecking: yes, ask, no, off, accept-new; "" = not said
    host_key_alias: str = ""
    warnings: tuple[str, ...] = ()

    def sighting(self, at: float) -> Sighting:
        """What this says of a machine."""
        address = Address(self.host, self.port, source=Source.SSH_CONFIG)
        return Sighting(Source.SSH_CONFIG, self.name, (address,), at, user=self.user,
                        identity_files=self.identity_files, jump=self.proxy_jump, through=self.proxy_command)


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole ssh_config. `warnings` are sentences, each with file and line."""

    aliases: tuple[Alias, ...] = ()
    warnings: tuple[str, ...] = ()


def aliases(path: Path) -> tuple[Alias, ...]:
    """The concrete aliases of a file, in its order."""
    return read_ssh_config(path).aliases


def read_ssh_config(path: Path, *, home: Path | None = None, local_user: str | None = None) -> Reading:
    """Read an ssh_config with all that it includes. A file that is not there is an empty one.

    Left out are names with wildcards, hosts of Git services and hosts whose user is git.
    """
    files = Files(home or Path(os.path.expanduser("~")))
    if not os.path.lexists(path):
        return Reading()
    if path.is_file() and (why := why_not_ours(path.stat())):
        return Reading(warnings=(f"{path} is not used, because {why}",))
    resolver = _Resolver(files.read(path), files, local_user if local_user is not None else _this_user())
    found: dict[str, Alias] = {}
    for name in resolver.names():
        if len(found) >= ALIASES_KEPT:
            files.warn(f"{path}: more than {ALIASES_KEPT} hosts; the rest is left out")
            break
        if name not in found and (alias := resolver.alias(name)) is not None:
            found[name] = alias
    return Reading(tuple(found.values()), tuple(files.warnings))


@dataclass(slots=True)
class _Options:
    """What the lines that apply to one host say, the first word on each matter winning."""

    values: dict[str, str] = field(default_factory=dict)
    identity_files: list[str] = field(default_factory=list)
    no_identity: bool = False
    final_wanted: bool = False
    warnings: list[str] = field(default_factory=list)


class _Resolver:
    def __init__(self, root: File, files: Files, local_user: str) -> None:
        self.root = root
        self.files = files
        self.local_user = local_user

    def names(self) -> Iterator[str]:
        """Names on Host lines that stand for one host each."""
        for line in all_lines(self.root):
            if line.keyword == "host":
                yield from (word for word in line.words
                            if word and not set("*?!") & set(word) and word.isprintable() and len(word) <= 255)

    def alias(self, name: str) -> Alias | None:
        """One alias resolved; None where it is no machine of a fleet."""
        options = self.options(name)
        host, port = self._host(name, options), self._port(options)
        user = options.values.get("user", "")
        if user == "git" or _is_git_host(host) or _is_git_host(name):
            return None
        jump = self._fill(options.values.get("proxyjump", ""), name, host, port, user, options)
        hops = tuple(self._hops(jump, (name.lower(),), options)) if jump else ()
        identity_files = self._identity_files(options, name, host, port, user)
        return Alias(name, host, port, user, identity_files, jump if hops else "", hops,
                     options.values.get("proxycommand", ""), options.values.get("stricthostkeychecking", "").lower(),
                     options.values.get("hostkeyalias", ""), tuple(options.warnings))

    # ---- which lines apply

    def options(self, name: str) -> _Options:
        """All that applies to a host; a second look where `Match final` asks for one."""
        options = _Options()
        self._apply(self.root, name, options, active=True, final=False)
        if options.final_wanted:
            # The host is settled before the second look (a HostName under `Match final` comes too late),
            # and Host lines are then held against it.
            options.values["hostname"] = self._host(name, options).replace("%", "%%")
            self._apply(self.root, name, options, active=True, final=True)
        return options

    def _apply(self, file: File, name: str, options: _Options, *, active: bool, final: bool) -> None:
        """Go through a file; what it includes ends with its own blocks, ours go on after it."""
        outer = active
        subject = (self._host(name, options) if final else name).lower()
        for line in file.lines:
            match line.keyword:
                case "host":
                    active = outer and matches(subject, [word.lower() for word in line.words])
                case "match":
                    active = outer and self._match(line, name, options, final)
                case "include":
                    for included in line.included if active else ():
                        self._apply(included, name, options, active=True, final=final)
                case _ if active:
                    self._set(line, options)

    def _match(self, line: Line, name: str, options: _Options, final: bool) -> bool:
        words = list(line.words)
        result = True
        while words:
            word = words.pop(0).lower()
            negated = word.startswith("!")
            condition, equals, value = word.lstrip("!").partition("=")
            if condition == "all":
                holds = True
            elif condition in ("canonical", "final"):
                options.final_wanted = options.final_wanted or condition == "final"
                holds = final
            else:
                if not equals and not words:
                    self.files.warn(f"{line.place}: Match {condition} has no value; the block is skipped")
                    return False
                value = value if equals else words.pop(0)
                if condition not in _CONDITIONS:
                    if condition == "exec":
                        sentence = f"{line.place}: `Match exec \"{value}\"` is not run; its block does not apply"
                    else:
                        sentence = f"{line.place}: `Match {condition}` is not known here; its block does not apply"
                    self.files.warn(sentence)
                    if result and sentence not in options.warnings:
                        options.warnings.append(sentence)
                    result = False
                    continue
                subject = {"host": self._host(name, options), "originalhost": name, "localuser": self.local_user,
                           "user": options.values.get("user") or self.local_user}[condition]
                patterns = value.split(",")
                by_name = condition in ("host", "originalhost")
                holds = matches(subject.lower() if by_name else subject,
                                 [p.lower() for p in patterns] if by_name else patterns)
            if holds == negated:
                result = False
        return result

    def _set(self, line: Line, options: _Options) -> None:
        key = line.keyword
        if key == "proxycommand":
            # Of the two the first to be said counts; `ProxyJump none` leaves room for a command, not the reverse.
            if "proxycommand" not in options.values and not options.values.get("proxyjump"):
                options.values[key] = "" if line.rest.strip().lower() == "none" else line.rest.strip()
            return
        if not line.words:
            if key in _FIRST_WINS or key in ("identityfile", "proxyjump"):
                self.files.warn(f"{line.place}: {key} has no value; the line is skipped")
            return
        value = line.words[0]
        if key == "proxyjump":
            if "proxycommand" not in options.values:
                options.values.setdefault(key, "" if value.lower() == "none" else value)
        elif key == "identityfile":
            if value not in options.identity_files:
                options.identity_files.append(value)
        elif key in _FIRST_WINS:
            options.values.setdefault(key, value)

    # ---- what the values mean

    def _host(self, name: str, options: _Options) -> str:
        """HostName with %h filled in. A scope with a single % (fe80::1%eth0) is taken as it is meant."""
        written = options.values.get("hostname", "")
        if not written:
            return name
        return _TOKEN.sub(lambda m: {"%": "%", "h": name}.get(m[1], m[0]), written)

    def _port(self, options: _Options) -> int:
        written = options.values.get("port", "")
        if written.isascii() and written.isdigit() and len(written) <= 5 and 1 <= int(written) <= 65535:
            return int(written)
        if written and written.lower() != "ssh":
            options.warnings.append(f"Port {written[:40]} is no port; {SSH_PORT} is used")
        return SSH_PORT

    def _fill(self, text: str, name: str, host: str, port: int, user: str, options: _Options) -> str:
        """A value with its tokens and ${VARIABLES} filled in; what is not known stays, with a warning."""
        here = os.uname().nodename
        tokens = {"%": "%", "h": host, "n": name, "p": str(port), "r": user or self.local_user, "u": self.local_user,
                  "d": str(self.files.home), "i": str(os.getuid()), "L": here.partition(".")[0], "l": here,
                  "k": options.values.get("hostkeyalias", "") or name, "j": ""}

        def token(match: re.Match[str]) -> str:
            if match[1] not in tokens:
                options.warnings.append(f"%{match[1]} in {text[:80]} is not known")
                return match[0]
            return tokens[match[1]]

        filled = re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], m[0]), text)
        return _TOKEN.sub(token, filled)

    def _identity_files(self, options: _Options, name: str, host: str, port: int, user: str) -> tuple[str, ...]:
        found = []
        for written in options.identity_files:
            if written.lower() == "none":
                continue
            path = str(self.files.home / written[2:]) if written.startswith("~/") else written
            found.append(self._fill(path, name, host, port, user, options))
        return tuple(dict.fromkeys(found))

    def _hops(self, jump: str, seen: tuple[str, ...], options: _Options) -> Iterator[Hop]:
        """The way, nearest hop first.

        As with ssh, only the first of several hops brings in hops of its own: the others are reached
        through the one before them, whatever their own ProxyJump says.
        """
        for place, text in enumerate(jump.split(",")[:HOPS_KEPT]):
            user, _, rest = text.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
            split = split_host_port(rest)
            if split is None:
                options.warnings.append(f"ProxyJump {text[:80]} is no host; the way to it is not known")
                return
            name, port = split
            if name.lower() in seen:
                options.warnings.append(f"ProxyJump goes in a circle at {name}; the hop is left out")
                continue
            own = self.options(name)
            host = self._host(name, own)
            own_port, own_user = port or self._port(own), user or own.values.get("user", "")
            further = self._fill(own.values.get("proxyjump", ""), name, host, own_port, own_user, own)
            if place == 0 and further and len(seen) < HOPS_KEPT:
                yield from self._hops(further, (*seen, name.lower()), options)
            seen = (*seen, name.lower())
            yield Hop(name, host, own_port, own_user, self._identity_files(own, name, host, own_port, own_user))


def _is_git_host(host: str) -> bool:
    name = host.lower().rstrip(".")
    return name.startswith("git-codecommit.") or any(name == git or name.endswith(f".{git}") for git in _GIT_HOSTS)


def _this_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):      # a container without an entry in passwd
        return str(os.getuid())
