"""From a target to a signed-in connection: hop by hop, host key first, then keys, then questions."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import asyncssh
from asyncssh.public_key import (
    SSHKeyPair,
    get_default_certificate_algs,
    get_default_public_key_algs,
    get_public_key_algs,
)

from fleet.errors import HostKeyChanged, NodeError, NodeRefused, NodeUnreachable
from fleet.model import Address
from fleet.nodes import host_keys, ssh_errors
from fleet.nodes.host_keys import HostKey, Judgement, Verdict
from fleet.nodes.questions import Interview
from fleet.nodes.ssh_dial import dial
from fleet.nodes.ssh_errors import Attempt
from fleet.nodes.ssh_keys import Offer
from fleet.nodes.ssh_settings import Settings
from fleet.nodes.ssh_target import SshTarget

# Loss is seen 4.0 s after the last packet: interval * (count + 1)
KEEPALIVE_INTERVAL = 1.0
KEEPALIVE_COUNT = 3
MOST_HOPS = 8
MOST_TRIES = 5    # host keys accepted, or questions answered after the server had hung up, in one sign-in
# Forwards of model weights are a third faster with it than with chacha20, the usual first choice
PREFERRED_CIPHERS = "^aes128-gcm@openssh.com"
_CLOSING = 2.0    # seconds that a connection may take to say goodbye

_PASSWORD = re.compile(r"pass(word|code|wort|phrase)|mot de passe|contrase", re.IGNORECASE)
log = logging.getLogger(__name__)


class Chain:
    """A connection to a node and those that it goes through, first hop first."""

    def __init__(self) -> None:
        self.connections: list[asyncssh.SSHClientConnection] = []
        self.address: Address | None = None
        self.fingerprint = ""

    @property
    def last(self) -> asyncssh.SSHClientConnection:
        """The one to the node itself."""
        return self.connections[-1]

    async def close(self) -> None:
        """End all of them, the farthest first; at once when the link is dead."""
        for connection in reversed(self.connections):
            connection.close()
            try:
                async with asyncio.timeout(_CLOSING):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()
        self.connections.clear()


async def connect(target: SshTarget, interview: Interview, *, accept_new: bool) -> Chain:
    """Sign in on the target, through its hops.

    Raises:
        NodeError: of the kind that says what is wrong; it names the hop when it is one.
    """
    chain = Chain()
    interview.begin()
    try:
        through = ""
        for hop in _hops(target, MOST_HOPS):
            await _Door(hop, through, chain, interview, accept_new).enter()
            through = hop.name
    except BaseException:
        interview.drop()
        await chain.close()
        raise
    return chain


def _hops(target: SshTarget, left: int) -> list[SshTarget]:
    """The hosts on the way, the target last. Of a list of hops the first one's own ProxyJump counts."""
    jump = target.jump or Settings(target).jump
    if not jump or jump.lower() == "none":
        return [target]
    if left <= 0:
        raise NodeError(f"{target.name} is reached through more than {MOST_HOPS} hops.",
                        "Its ProxyJump goes in a circle; see `ssh -G`.", code="jump-circle")
    names = [name.strip() for name in jump.split(",") if name.strip()]
    try:
        hops = [_hop(name, target) for name in names]
    except ValueError as error:
        raise NodeError(f"The jump {jump!r} of {target.name} cannot be read.",
                        "Write it as user@host:port, several with commas between.", code="jump") from error
    return [*_hops(hops[0], left - 1), *(replace(hop, jump="none") for hop in hops[1:]),
            replace(target, jump="none")]


def _hop(name: str, target: SshTarget) -> SshTarget:
    name = name.removeprefix("ssh://")
    user, _, place = name.rpartition("@")
    host, port = place, 22
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        port = int(rest.removeprefix(":") or 22)
    elif place.count(":") == 1:
        host, _, number = place.partition(":")
        port = int(number)
    if not host or not 0 < port < 65536:
        raise ValueError(name)
    return replace(target, name=host, addresses=(Address(host, port, source="ssh_config"),), user=user or None,
                   jump="", identity_files=())


class _Door(asyncssh.SSHClient):
    """One host: what is asked of us while we sign in on it."""

    def __init__(self, target: SshTarget, through: str, chain: Chain, interview: Interview, accept_new: bool) -> None:
        self._target = target
        self._chain = chain
        self._interview = interview
        self._accept_new = accept_new
        self._settings = Settings(target)
        self._attempt = Attempt(target.name, target.user or self._settings.user, "", 0, through)
        self._known = host_keys.read((target.known_hosts, *self._settings.known_hosts))
        self._vouched: list[HostKey] = []      # accepted, though perhaps not written down
        self._shown: tuple[HostKey, Judgement] | None = None
        self._offer: Offer | None = None
        self._asked_in_words = True            # keyboard-interactive is worth a try
        self._scope: asyncio.Timeout | None = None
        self._connection: asyncssh.SSHClientConnection | None = None

    async def enter(self) -> None:
        """Sign in and add the connection to the chain."""
        left = [self._resolved(address) for address in self._target.addresses]
        again = 0
        while True:
            address, sock = await self._reach(left)
            try:
                connection = await self._sign_in(address, sock)
                break
            except _Again as more:
                again += 1
                if again > MOST_TRIES:
                    raise NodeError(f"{self._attempt.node} ({self._attempt.place}) shows another host key each time.",
                                    "Something between here and it is not right.", code="host-key") from more
            except (HostKeyChanged, NodeUnreachable, NodeRefused):
                # another machine may have an old address of this node: its others may still be right
                left.remove(address)
                if not left:
                    raise
        self._chain.connections.append(connection)
        self._chain.address = address
        self._chain.fingerprint = self._shown[0].fingerprint if self._shown else ""

    def _resolved(self, address: Address) -> Address:
        """An address that is an alias of ssh_config, as that file means it."""
        named = {self._target.name.lower(), self._settings.hostname.lower()}
        if address.host.lower() not in named:
            return address
        host = self._settings.hostname if address.host.lower() == self._target.name.lower() else address.host
        port = self._settings.port if address.port == 22 else None
        return replace(address, host=host or address.host, port=port or address.port)

    async def _reach(self, addresses: Sequence[Address]) -> tuple[Address, socket.socket | None]:
        if self._chain.connections or self._settings.get("ProxyCommand"):
            if not addresses:
                await dial(self._target.name, addresses, 0)   # says that there is none
            return addresses[0], None
        sock, address = await dial(self._target.name, addresses, self._target.connect_timeout)
        return address, sock

    async def _sign_in(self, address: Address, sock: socket.socket | None) -> asyncssh.SSHClientConnection:
        attempt, settings, interview = self._attempt, self._settings, self._interview
        attempt.host, attempt.port, attempt.greeted, attempt.keyed = address.host, address.port, False, False
        attempt.methods.clear()
        self._shown, self._connection, self._asked_in_words = None, None, True
        self._offer = Offer(settings.identity_files(self._target), settings.agent_path(self._target),
                            bool(settings.get("IdentitiesOnly")),
                            tuple(settings.get("CertificateFile") or ()), interview)
        interview.patience, answers = self._patience, interview.answers
        try:
            async with asyncio.timeout(self._target.connect_timeout) as self._scope:
                return await asyncssh.connect(address.host, address.port, **self._options(sock))
        except asyncssh.HostKeyNotVerifiable as error:
            await self._settle_host_key(error)
            raise _Again from error
        except asyncssh.ChannelOpenError as error:
            raise ssh_errors.of_hop(error, attempt) from error
        except (asyncssh.Error, OSError, ValueError) as error:
            if isinstance(error, asyncssh.ConnectionLost | ConnectionError):
                await interview.settled()
                if interview.answers > answers:   # the server did not wait for it: now it is there
                    interview.dial_again()
                    raise _Again from error
            raise self._explained(error) from error
        finally:
            if sock is not None and self._connection is None:
                sock.close()
            await self._offer.close()

    def _explained(self, error: Exception) -> NodeError:
        attempt = self._attempt
        assert self._offer is not None
        if self._connection is None and isinstance(error, ValueError):
            return NodeError(f"The SSH settings of {attempt.node} cannot be used: {error}.",
                             "Correct its Ciphers, MACs, KexAlgorithms or HostKeyAlgorithms in ssh_config.",
                             code="ssh-config")
        if self._connection is not None and self._connection.get_extra_info("server_version"):
            attempt.greeted = True
        if isinstance(error, TimeoutError) and attempt.through and not attempt.greeted:
            return ssh_errors.hop_silent(attempt, self._target.connect_timeout)
        if isinstance(error, asyncssh.PermissionDenied):
            self._interview.forget_password(self._account)
        attempt.declined = self._interview.declined
        return ssh_errors.of_handshake(error, attempt, self._offer.offered, self._offer.locked)

    def _options(self, sock: socket.socket | None) -> dict[str, object]:
        settings = self._settings
        options: dict[str, object] = {
            "config": None, "client_factory": lambda: self, "username": self._attempt.user,
            "known_hosts": self._authorities, "server_host_key_algs": self._host_key_algorithms(),
            # keys come one by one from `public_key_auth_requested`: the library would load the usual ones itself
            "client_keys": None, "agent_path": None, "gss_host": None, "x509_trusted_certs": None,
            "compression_algs": ["none"], "encryption_algs": settings.get("Ciphers") or PREFERRED_CIPHERS,
            "keepalive_interval": KEEPALIVE_INTERVAL, "keepalive_count_max": KEEPALIVE_COUNT,
            "connect_timeout": None, "login_timeout": 0,
        }
        for option, name in (("KexAlgorithms", "kex_algs"), ("MACs", "mac_algs"),
                             ("PreferredAuthentications", "preferred_auth"),
                             ("PubkeyAuthentication", "public_key_auth"), ("PasswordAuthentication", "password_auth"),
                             ("KbdInteractiveAuthentication", "kbdint_auth")):
            if settings.get(option) is not None:
                options[name] = settings.get(option)
        if sock is not None:
            options["sock"] = sock
        elif self._chain.connections:
            options["tunnel"] = self._chain.last
        elif settings.get("ProxyCommand"):
            options["proxy_command"] = settings.get("ProxyCommand")
        return options

    # Host keys

    def _names(self) -> tuple[list[str], list[str]]:
        """The names that the key must not contradict, and those that may vouch for it."""
        host, port = self._attempt.host, self._attempt.port
        alias = self._settings.get("HostKeyAlias")
        if alias:
            return [alias.lower()], []
        vouching = [self._target.name.lower(), *(a.host.lower() for a in self._target.addresses), host.lower()]
        return [host_keys.name_of(host, port)], [
            *vouching, *(host_keys.name_of(name, port) for name in vouching),
            *(host_keys.name_of(a.host, a.port) for a in self._target.addresses)]

    def _authorities(self, host: str, addr: str, port: int | None) -> tuple[list, list, list]:
        names, vouching = self._names()
        return ([], *([asyncssh.import_public_key(_openssh(key)) for key in
                       host_keys.authorities(self._known, [*names, *vouching], marker)]
                      for marker in ("cert-authority", "revoked")))

    def _host_key_algorithms(self) -> list[str]:
        names, vouching = self._names()
        usual = [name.decode() for name in get_default_public_key_algs()]
        extra = str(self._settings.get("HostKeyAlgorithms") or "")
        if extra.startswith("+"):
            usual += extra[1:].split(",")
        elif extra and extra[0] not in "-^":
            usual = extra.split(",")
        known = [algorithm for kind in host_keys.algorithms(self._known, [*names, *vouching])
                 for algorithm in usual if algorithm == kind or (kind == "ssh-rsa" and algorithm.startswith("rsa-"))]
        certified = host_keys.authorities(self._known, [*names, *vouching], "cert-authority")
        certificates = [name.decode() for name in get_default_certificate_algs()] if certified else []
        possible = {name.decode() for name in get_public_key_algs()} | set(certificates)
        return [name for name in dict.fromkeys([*certificates, *known, *usual]) if name in possible]

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """asyncssh: whether this key may be the host's. What is refused here is settled afterwards."""
        shown = HostKey(key.get_algorithm(), key.public_data)
        names, vouching = self._names()
        judgement = host_keys.judge(self._known, shown, names, [*vouching, host_keys.name_of(addr, port)])
        self._attempt.greeted = True
        self._shown = shown, judgement
        return judgement.verdict is Verdict.KNOWN or shown in self._vouched

    async def _settle_host_key(self, error: asyncssh.HostKeyNotVerifiable) -> None:
        """Accept the key that was refused, or raise what is wrong with it."""
        attempt = self._attempt
        if self._shown is None:
            if "revoked" in str(error):
                raise host_keys.revoked(attempt.node, attempt.place, None) from error
            raise HostKeyChanged(f"{attempt.node} at {attempt.place} shows a host certificate that does not hold: "
                                 f"{error.reason}.", "Check @cert-authority in known_hosts, and its clock.") from error
        key, judgement = self._shown
        names, _ = self._names()
        if judgement.line is not None and judgement.verdict is Verdict.CHANGED:
            raise host_keys.changed(attempt.node, attempt.place, key, judgement.line, names[0]) from error
        if judgement.verdict is Verdict.REVOKED:
            raise host_keys.revoked(attempt.node, attempt.place, judgement.line) from error
        if not self._accept_new and not await self._interview.host_key(attempt.place, key.algorithm, key.fingerprint):
            raise host_keys.unknown(attempt.node, attempt.place, key, attempt.command) from error
        self._vouched.append(key)
        try:
            await asyncio.to_thread(host_keys.append, self._target.known_hosts, names[0], key)
        except OSError as unwritable:
            log.warning("%s cannot be written (%s): the key of %s is good until the end of this run",
                        self._target.known_hosts, unwritable.strerror, attempt.node)

    # Signing in

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """asyncssh: the protocol begins."""
        self._connection = conn

    def begin_auth(self, username: str) -> None:
        """asyncssh: the host is who it should be."""
        self._attempt.greeted = self._attempt.keyed = True

    async def public_key_auth_requested(self) -> SSHKeyPair | None:
        """asyncssh: the next key to offer."""
        self._note_methods()
        assert self._offer is not None
        return await self._offer.next()

    async def password_auth_requested(self) -> str | None:
        """asyncssh: the password."""
        self._note_methods()
        return await self._interview.password(self._account)

    def kbdint_auth_requested(self) -> str | None:
        """asyncssh: whether we answer what a server asks in its own words; not again when it had nothing to ask."""
        self._note_methods()
        asked, self._asked_in_words = self._asked_in_words, False
        return "" if asked else None

    async def kbdint_challenge_received(self, name: str, instructions: str, lang: str,
                                        prompts: Sequence[tuple[str, bool]]) -> list[str] | None:
        """asyncssh: the server's own questions; a password among them is remembered like any other."""
        self._asked_in_words = bool(prompts)
        answers = []
        for prompt, _ in prompts[:8]:
            answer = await (self._interview.password(self._account, prompt) if _PASSWORD.search(prompt)
                            else self._interview.code(self._account, prompt))
            if answer is None:
                return None
            answers.append(answer)
        return answers

    @property
    def _account(self) -> str:
        return f"{self._attempt.user}@{self._attempt.host}"

    def _note_methods(self) -> None:
        if self._connection is not None:
            methods = self._attempt.methods
            methods += [m for m in self._connection.get_server_auth_methods() if m not in methods]

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """While a person is asked, no clock of ours runs."""
        loop, scope = asyncio.get_running_loop(), self._scope
        if scope is None or scope.expired() or scope.when() is None:
            yield
            return
        left = max(1.0, scope.when() - loop.time())
        scope.reschedule(None)
        try:
            yield
        finally:
            with suppress(RuntimeError):     # the wait has ended meanwhile: the server hung up
                scope.reschedule(loop.time() + left)


class _Again(Exception):
    """The same again: a key was accepted, or a question answered after the server had hung up."""


def _openssh(key: HostKey) -> str:
    return f"{key.algorithm} {base64.b64encode(key.blob).decode()}"
