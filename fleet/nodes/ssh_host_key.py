"""The host key of one host, before anybody signs in there: judged, asked about, written down."""

from __future__ import annotations

import asyncio
import base64
import logging

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs, get_public_key_algs

from fleet.errors import HostKeyChanged
from fleet.model import Address
from fleet.nodes import host_keys
from fleet.nodes.host_keys import HostKey, Judgement, Verdict
from fleet.nodes.questions import Interview
from fleet.nodes.ssh_errors import Attempt
from fleet.nodes.ssh_settings import Settings
from fleet.nodes.ssh_target import SshTarget

HEARD = "mdns"     # the source of an address that anybody on the network may have announced

log = logging.getLogger(__name__)


class HostKeyCheck:
    """What known_hosts says of the host that `attempt` is at."""

    def __init__(self, target: SshTarget, settings: Settings, attempt: Attempt) -> None:
        self.shown: HostKey | None = None      # what the host showed in this attempt
        self._target = target
        self._settings = settings
        self._attempt = attempt
        self._known = host_keys.read((target.known_hosts, *settings.known_hosts))
        self._vouched: list[HostKey] = []      # accepted, though perhaps not written down
        self._judgement = Judgement(Verdict.UNKNOWN)

    def names(self) -> tuple[list[str], list[str]]:
        """The names that the key must not contradict, and those that may vouch for it.

        An address that only the network tells of vouches for nothing, and must not contradict the node's name either.
        """
        host, port, alias = self._attempt.host, self._attempt.port, self._settings.get("HostKeyAlias")
        if alias:
            return [alias.lower()], []
        given, name = self._given(), self._target.name.lower()
        others = [name, *(a.host.lower() for a in given)]
        if self._is_heard():
            return [host_keys.name_of(host, port), name], [*others, *(host_keys.name_of(a.host, a.port) for a in given)]
        others.append(host.lower())
        return [host_keys.name_of(host, port)], [
            *others, *(host_keys.name_of(name, port) for name in others),
            *(host_keys.name_of(a.host, a.port) for a in given)]

    def _given(self) -> list[Address]:
        """The addresses that a person or a file gave, not the network."""
        return [address for address in self._target.addresses if address.source != HEARD]

    def _is_heard(self) -> bool:
        """The address of this attempt is the network's word alone."""
        here = (self._attempt.host.lower(), self._attempt.port)
        sources = {a.source for a in self._target.addresses if (a.host.lower(), a.port) == here}
        return sources == {HEARD}

    def _denying(self) -> list[str]:
        """What else the key of such an address must not contradict: the names that the node was given."""
        if self._settings.get("HostKeyAlias") or not self._is_heard():
            return []
        return [host_keys.name_of(address.host, address.port) for address in self._given()]

    def authorities(self, host: str, addr: str, port: int | None) -> tuple[list[asyncssh.SSHKey], ...]:
        """asyncssh's `known_hosts`: no plain keys (`accepts` judges those), the authorities, the revoked."""
        return ([], *([asyncssh.import_public_key(_openssh(key)) for key in self._marked(marker)]
                      for marker in ("cert-authority", "revoked")))

    def algorithms(self) -> list[str]:
        """Kinds of key to ask for: the known ones first, lest another one of the host's look like a change."""
        usual = [name.decode() for name in get_default_public_key_algs()]
        wished = str(self._settings.get("HostKeyAlgorithms") or "")
        if wished.startswith("+"):
            usual += wished[1:].split(",")
        elif wished and wished[0] not in "-^":
            usual = wished.split(",")
        names, vouching = self.names()
        known = [algorithm for kind in host_keys.algorithms(self._known, [*names, *vouching])
                 for algorithm in usual if algorithm == kind or (kind == "ssh-rsa" and algorithm.startswith("rsa-"))]
        certificates = [n.decode() for n in get_default_certificate_algs()] if self._marked("cert-authority") else []
        possible = {name.decode() for name in get_public_key_algs()} | set(certificates)
        return [name for name in dict.fromkeys([*certificates, *known, *usual]) if name in possible]

    def accepts(self, key: asyncssh.SSHKey) -> bool:
        """Whether the key that the host shows is known. What is refused here is for `settle`."""
        self.shown = HostKey(key.get_algorithm(), key.public_data)
        names, vouching = self.names()
        self._judgement = host_keys.judge(self._known, self.shown, names, vouching, denying=self._denying())
        return self._judgement.verdict is Verdict.KNOWN or self.shown in self._vouched

    async def settle(self, error: asyncssh.HostKeyNotVerifiable, interview: Interview, *, accept_new: bool) -> None:
        """Accept the key that was refused, asking for it, or raise what is wrong with it.

        Raises:
            HostKeyUnknown: nobody vouches for it.
            HostKeyChanged: known_hosts has another one, or revokes it.
        """
        node, place, key, line = self._attempt.node, self._attempt.place, self.shown, self._judgement.line
        if key is None or self._judgement.verdict is Verdict.REVOKED:
            if "revoked" in str(error):
                raise host_keys.revoked(node, place, line or self._revoked_line()) from error
            raise HostKeyChanged(f"{node} at {place} shows a host certificate that does not hold: {error.reason}.",
                                 "Check its date, its principals and @cert-authority in known_hosts.") from error
        names, _ = self.names()
        if self._judgement.verdict is Verdict.CHANGED and line is not None:
            said_of = next(filter(line.speaks_of, (*names, *self._denying())), names[0])
            raise host_keys.changed(node, place, key, line, said_of) from error
        if not accept_new and not await interview.host_key(node, place, key.algorithm, key.fingerprint):
            raise host_keys.unknown(node, place, key, self._attempt.command) from error
        self._vouched.append(key)
        try:
            await asyncio.to_thread(host_keys.append, self._target.known_hosts, names[0], key)
        except OSError as unwritable:
            log.warning("%s cannot be written (%s): the key of %s is good until the end of this run",
                        self._target.known_hosts, unwritable.strerror, node)

    def _marked(self, marker: str) -> tuple[HostKey, ...]:
        names, vouching = self.names()
        return host_keys.authorities(self._known, [*names, *vouching], marker)

    def _revoked_line(self) -> host_keys.KnownHost | None:
        names, vouching = self.names()
        return next((line for line in self._known if line.marker == "revoked"
                     and any(map(line.speaks_of, [*names, *vouching]))), None)


def _openssh(key: HostKey) -> str:
    return f"{key.algorithm} {base64.b64encode(key.blob).decode()}"
