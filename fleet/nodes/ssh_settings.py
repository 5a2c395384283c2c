"""What ssh_config says of one host, read by asyncssh's reader with care for what it gets wrong.

`Match exec` runs a command of the file's choosing, once for each node and each try: we never do, such
a block does not match. Conditions that the reader does not know do not match either, where it would
refuse the whole file.
"""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from asyncssh.config import ConfigParseError, SSHClientConfig

from fleet.errors import NodeError
from fleet.nodes.ssh_target import SshTarget
from fleet.ownership import why_not_ours

_ALONE = {"all", "canonical", "final"}                                   # conditions without a value
_KNOWN = {"host", "originalhost", "user", "localuser", "localnetwork", "tagged"}
USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")


class _Reader(SSHClientConfig):
    """asyncssh's reader, without `Match exec`; knows whether a block names the host."""

    named = False

    def _match_block(self, option: str, args: list[str]) -> None:
        words = iter(args)
        conditions = []
        for word in words:
            condition = word.lower().removeprefix("!")
            conditions.append(condition)
            if condition not in _ALONE:
                next(words, None)
        if set(conditions) - _ALONE - _KNOWN:
            self._matching = False
            args.clear()
            return
        self._match(option, args)

    def _host_block(self, option: str, args: list[str]) -> None:
        names_something = any(set(pattern) - set("*?!") for pattern in args)
        self._match_host(option, args)
        self.named = self.named or (self._matching and names_something)

    _handlers: ClassVar = {**SSHClientConfig._handlers, "match": ("Match", _match_block), "host": ("Host", _host_block)}


class Settings:
    """ssh_config's word on one host, under the name that a person would type."""

    def __init__(self, target: SshTarget) -> None:
        files = [str(path) for file in target.ssh_config_files if (path := Path(file).expanduser()).is_file()]
        for file in files:
            if why := why_not_ours(os.stat(file)):
                raise NodeError(f"{file} is not used, because {why}: it can name programs to run.",
                                f"Make it yours alone: `chmod 600 {shlex.quote(file)}`.", code="ssh-config")
        others = dict.fromkeys(address.host for address in target.addresses if address.host != target.name)
        try:
            # each reading of a file with a hundred hosts takes 4 ms: none more than has to be
            self._read = first = _load(files, target.name, target.user)
            if not first.named:
                others_read = (_load(files, name, target.user) for name in others)
                self._read = next((read for read in others_read if read.named), first)
        except (ConfigParseError, ValueError, OSError) as error:
            raise NodeError(f"The SSH configuration for {target.name} cannot be read: {error}.",
                            "Correct that line; `ssh -G NAME` shows what OpenSSH makes of it.",
                            code="ssh-config") from error

    def get(self, option: str, default: Any = None) -> Any:
        """An option's value as asyncssh keeps it."""
        return self._read.get(option, default)

    @property
    def user(self) -> str:
        """Who signs in."""
        return str(self.get("User") or _this_user())

    @property
    def hostname(self) -> str:
        """HostName, or ""."""
        return str(self.get("Hostname") or "")

    @property
    def port(self) -> int | None:
        """Port, where the file has one."""
        port = self.get("Port")
        return port if isinstance(port, int) and 0 < port < 65536 else None

    @property
    def jump(self) -> str:
        """ProxyJump, or ""."""
        return str(self.get("ProxyJump") or "")

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Files beside the target's own that are read for host keys."""
        user = self.get("UserKnownHostsFile") or ()
        system = self.get("GlobalKnownHostsFile") or ("/etc/ssh/ssh_known_hosts",)
        return (*map(str, user), *map(str, system))

    def identity_files(self, target: SshTarget) -> tuple[str, ...]:
        """Key files to try, best first."""
        named: Sequence[str] = target.identity_files or self.get("IdentityFile") or ()
        files = named or tuple(f"~/.ssh/{name}" for name in USUAL_KEYS)
        return tuple(dict.fromkeys(os.path.expanduser(file) for file in files))

    def agent_path(self, target: SshTarget) -> str | None:
        """The agent's socket; None = none."""
        if not target.agent:
            return None
        path = self.get("IdentityAgent", "SSH_AUTH_SOCK")
        if path == "SSH_AUTH_SOCK":
            path = os.environ.get("SSH_AUTH_SOCK", "")
        return os.path.expanduser(path) if path else None


def _load(files: list[str], name: str, user: str | None) -> _Reader:
    who = user if user is not None else ()
    first = _Reader.load(None, files, False, False, False, _this_user(), who, name, ())
    if not first.has_match_final():
        return first
    last = _Reader.load(first, files, False, False, True, _this_user(), (), name, ())
    last.named = first.named
    return last


def _this_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):   # no entry in passwd: a container
        return "root" if os.geteuid() == 0 else str(os.geteuid())
