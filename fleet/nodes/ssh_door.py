"""One host let us in: its key first, then our keys, then what only a person knows."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import asyncssh
from asyncssh.public_key import SSHKeyPair

from fleet.errors import HostKeyChanged, NodeError, NodeRefused, NodeUnreachable
from fleet.model import Address
from fleet.nodes import ssh_errors
from fleet.nodes.questions import Interview
from fleet.nodes.ssh_dial import dial
from fleet.nodes.ssh_errors import Attempt
from fleet.nodes.ssh_host_key import HostKeyCheck
from fleet.nodes.ssh_keys import Offer
from fleet.nodes.ssh_settings import Settings
from fleet.nodes.ssh_target import SshTarget

# Loss is seen 4.0 s after the last packet: interval * (count + 1)
KEEPALIVE_INTERVAL = 1.0
KEEPALIVE_COUNT = 3
MOST_TRIES = 5    # host keys accepted, or questions answered after the server had hung up, in one sign-in
# Forwards of model weights are a third faster with it than with chacha20, the usual first choice
PREFERRED_CIPHERS = "^aes128-gcm@openssh.com"
_PASSWORD = re.compile(r"pass(word|code|wort|phrase)|mot de passe|contrase", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entered:
    """A signed-in connection, the address that answered, and the fingerprint of the key it showed."""

    connection: asyncssh.SSHClientConnection
    address: Address
    fingerprint: str


class Door(asyncssh.SSHClient):
    """One host: what is asked of us while we sign in on it."""

    def __init__(self, target: SshTarget, tunnel: asyncssh.SSHClientConnection | None, through: str,
                 interview: Interview, *, accept_new: bool, settings: Settings | None = None) -> None:
        self._target = target
        self._tunnel = tunnel                  # the connection to the hop before
        self._interview = interview
        self._accept_new = accept_new
        self._settings = settings or Settings(target)
        self._attempt = Attempt(target.name, target.user or self._settings.user, "", 0, through)
        self._host_key = HostKeyCheck(target, self._settings, self._attempt)
        self._offer: Offer | None = None
        self._asked_in_words = True            # keyboard-interactive is worth a try
        self._scope: asyncio.Timeout | None = None
        self._connection: asyncssh.SSHClientConnection | None = None

    async def enter(self) -> Entered:
        """Sign in."""
        left = [self._resolved(address) for address in self._target.addresses]
        again = 0
        while True:
            address, sock = await self._reach(left)
            try:
                connection = await self._sign_in(address, sock)
                shown = self._host_key.shown
                return Entered(connection, address, shown.fingerprint if shown else "")
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

    def _resolved(self, address: Address) -> Address:
        """An address that is an alias of ssh_config, as that file means it."""
        named = {self._target.name.lower(), self._settings.hostname.lower()}
        if address.host.lower() not in named:
            return address
        host = self._settings.hostname if address.host.lower() == self._target.name.lower() else address.host
        port = self._settings.port if address.port == 22 else None
        return replace(address, host=host or address.host, port=port or address.port)

    async def _reach(self, addresses: Sequence[Address]) -> tuple[Address, socket.socket | None]:
        if self._tunnel is not None or self._settings.get("ProxyCommand"):
            if not addresses:
                await dial(self._target.name, addresses, 0)   # says that there is none
            return addresses[0], None
        sock, address = await dial(self._target.name, addresses, self._target.connect_timeout)
        return address, sock

    async def _sign_in(self, address: Address, sock: socket.socket | None) -> asyncssh.SSHClientConnection:
        attempt, settings, interview = self._attempt, self._settings, self._interview
        attempt.host, attempt.port, attempt.greeted, attempt.keyed = address.host, address.port, False, False
        attempt.methods.clear()
        self._host_key.shown, self._connection, self._asked_in_words = None, None, True
        self._offer = Offer(settings.identity_files(self._target), settings.agent_path(self._target),
                            bool(settings.get("IdentitiesOnly")),
                            tuple(settings.get("CertificateFile") or ()), interview)
        interview.patience, answers = self._patience, interview.answers
        try:
            async with asyncio.timeout(self._target.connect_timeout) as self._scope:
                return await asyncssh.connect(address.host, address.port, **self._options(sock))
        except asyncssh.HostKeyNotVerifiable as error:
            await self._host_key.settle(error, interview, accept_new=self._accept_new)
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
            "known_hosts": self._host_key.authorities, "server_host_key_algs": self._host_key.algorithms(),
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
        elif self._tunnel is not None:
            options["tunnel"] = self._tunnel
        elif settings.get("ProxyCommand"):
            options["proxy_command"] = settings.get("ProxyCommand")
        return options

    # What asyncssh asks

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """The protocol begins."""
        self._connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Whether this key may be the host's."""
        self._attempt.greeted = True
        return self._host_key.accepts(key)

    def begin_auth(self, username: str) -> None:
        """The host is who it should be."""
        self._attempt.greeted = self._attempt.keyed = True

    async def public_key_auth_requested(self) -> SSHKeyPair | None:
        """The next key to offer."""
        self._note_methods()
        assert self._offer is not None
        return await self._offer.next()

    async def password_auth_requested(self) -> str | None:
        """The password."""
        self._note_methods()
        return await self._interview.password(self._account)

    def kbdint_auth_requested(self) -> str | None:
        """Whether we answer what a server asks in its own words; not again when it had nothing to ask."""
        self._note_methods()
        asked, self._asked_in_words = self._asked_in_words, False
        return "" if asked else None

    async def kbdint_challenge_received(self, name: str, instructions: str, lang: str,
                                        prompts: Sequence[tuple[str, bool]]) -> list[str] | None:
        """The server's own questions; a password among them is remembered like any other."""
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
        """Whose password it is. Behind a hop, or on another port, the same address is another machine."""
        attempt = self._attempt
        port = f":{attempt.port}" if attempt.port != 22 else ""
        return f"{attempt.user}@{attempt.host}{port}{f' through {attempt.through}' if attempt.through else ''}"

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
