"""asyncssh's exceptions as errors for people: what is wrong with which node, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncssh

from fleet.errors import ConnectionDropped, NodeError, NodeRefused, NodeUnreachable, SignInFailed
from fleet.nodes.ssh_target import where
from fleet.text import visible


@dataclass(slots=True)
class Attempt:
    """What is known of one try to sign in, filled as it goes."""

    node: str
    user: str
    host: str
    port: int
    through: str = ""                 # the hop before it
    greeted: bool = False             # the server told its version
    keyed: bool = False               # the host key was accepted: encryption stands
    methods: list[str] = field(default_factory=list)   # ways to sign in that the server offers
    declined: bool = False            # a question got no answer

    @property
    def place(self) -> str:
        """host:port."""
        return where(self.host, self.port)

    @property
    def command(self) -> str:
        """What a person would type to try the same."""
        port = f" -p {self.port}" if self.port != 22 else ""
        return f"ssh{port} {shlex.quote(f'{self.user}@{self.host}')}"


def of_handshake(error: Exception, attempt: Attempt, offered: Sequence[str], locked: Sequence[str]) -> NodeError:
    """Why a TCP connection did not become a signed-in one."""
    who = f"{attempt.node} ({attempt.place})"
    reason = visible(str(getattr(error, "reason", "") or error), limit=200).rstrip(".")
    if isinstance(error, asyncssh.PermissionDenied) or "authentication failures" in reason:
        return _sign_in(attempt, offered, locked, too_many="authentication failures" in reason)
    if isinstance(error, TimeoutError):
        doing = "sign-in" if attempt.keyed else "handshake" if attempt.greeted else "greeting"
        return NodeUnreachable(f"{who} took the connection, but its SSH {doing} did not come in time.",
                               "The machine may be overloaded, or something else listens on that port.",
                               code="handshake-timeout")
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return NodeRefused(f"{who} and this machine have no SSH algorithm in common: {reason}.",
                           "Update its sshd; for an old device set KexAlgorithms or HostKeyAlgorithms in ssh_config.",
                           code="key-exchange")
    if not attempt.greeted and isinstance(error, (asyncssh.ConnectionLost, OSError)):
        return NodeRefused(f"{who} took the connection and closed it before a word of SSH.",
                           "Its sshd may have too many open sign-ins (MaxStartups) or bar this address "
                           "(PerSourcePenalties, fail2ban, hosts.deny); it is tried again.", code="sshd-closed")
    if not attempt.greeted or isinstance(error, asyncssh.ProtocolNotSupported):
        return NodeRefused(f"{who} does not speak SSH: {reason}.", "Correct the port.", code="not-ssh")
    if isinstance(error, (asyncssh.ConnectionLost, OSError)):
        return ConnectionDropped(f"The connection to {who} broke while signing in: {reason}.", "It is tried again.")
    return NodeRefused(f"{who} ended the SSH handshake: {reason}.", f"See what `{attempt.command}` says.",
                       code="handshake")


def of_hop(error: asyncssh.ChannelOpenError, attempt: Attempt) -> NodeError:
    """Why the hop before did not get through to this host."""
    reason = visible(str(error.reason), limit=200).rstrip(".")
    what = f"Could not reach {attempt.node} ({attempt.place}) through {attempt.through}: {reason}."
    if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
        return NodeRefused(what, f"Allow TCP forwarding in the sshd of {attempt.through} (AllowTcpForwarding).",
                           code="forwarding-refused")
    if "refused" in reason.lower():
        return NodeRefused(what, f"Start sshd on {attempt.node}, or correct its port.")
    return NodeUnreachable(what, f"Check from {attempt.through} that {attempt.node} is up and its address is right.")


def hop_silent(attempt: Attempt, timeout: float) -> NodeUnreachable:
    """Nothing came back through the hop before."""
    return NodeUnreachable(
        f"Could not reach {attempt.node} ({attempt.place}) through {attempt.through}: no answer in {timeout:g} s.",
        f"Check from {attempt.through} that {attempt.node} is up and its address is right.")


def of_channel(node: str, error: BaseException | None, *, full: bool = False) -> NodeError:
    """Why something on a connection that stood did not work; `full`: it still stands, but takes no more sessions."""
    reason = visible(str(getattr(error, "reason", "") or error or ""), limit=200).rstrip(".")
    if full:
        return NodeError(f"{node} opens no further session on its connection: {reason}.",
                         "Raise MaxSessions in its sshd_config, or look at fewer logs at once.", code="sessions")
    return ConnectionDropped(f"The connection to {node} is lost{f' ({reason})' if reason else ''}.",
                             "It is connected again as soon as it answers.")


def _sign_in(attempt: Attempt, offered: Sequence[str], locked: Sequence[str], *, too_many: bool) -> SignInFailed:
    methods = ", ".join(visible(method, limit=40) for method in attempt.methods[:8]) or "no method that we know"
    tried = ", ".join(visible(key, limit=80) for key in offered[:6]) or "no key, since none was found"
    what = f"{attempt.node} did not let {attempt.user} in at {attempt.place}: it offers {methods}; tried {tried}."
    if too_many:
        return SignInFailed(what, "It counts each key as a try: name the right one (`identity_files:`) and set "
                                  "IdentitiesOnly for it in ssh_config.", code="too-many-keys")
    if attempt.declined and locked:
        return SignInFailed(what, f"Load the key into your agent: `ssh-add {shlex.quote(locked[0])}`.")
    if attempt.declined:
        return SignInFailed(what, f"Answer when it asks for the password, or copy a key there: "
                                  f"`{attempt.command.replace('ssh', 'ssh-copy-id', 1)}`.")
    return SignInFailed(what, f"Copy a key there (`{attempt.command.replace('ssh', 'ssh-copy-id', 1)}`), or correct "
                              f"`user:` and `identity_files:` in fleet.yaml.")
