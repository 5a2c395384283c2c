"""The way to a node: the hosts of a ProxyJump, each with what ssh_config says of it."""

from __future__ import annotations

from dataclasses import replace

from fleet.errors import NodeError
from fleet.model import Address
from fleet.nodes.ssh_settings import Settings
from fleet.nodes.ssh_target import SshTarget

MOST_HOPS = 8


def hops(target: SshTarget, left: int = MOST_HOPS, *, settings: Settings | None = None) -> list[SshTarget]:
    """The hosts on the way, the target last. Of a list of hops the first one's own ProxyJump counts.

    `settings` are the target's, where they were read already.
    """
    jump = target.jump or (settings or Settings(target)).jump
    if not jump or jump.lower() == "none":
        return [target]
    if left <= 0:
        raise NodeError(f"{target.name} is reached through more than {MOST_HOPS} hops.",
                        "Its ProxyJump goes in a circle; see `ssh -G`.", code="jump-circle")
    names = [name.strip() for name in jump.split(",") if name.strip()]
    try:
        found = [_hop(name, target) for name in names]
    except ValueError as error:
        raise NodeError(f"The jump {jump!r} of {target.name} cannot be read.",
                        "Write it as user@host:port, several with commas between.", code="jump") from error
    return [*hops(found[0], left - 1), *(replace(hop, jump="none") for hop in found[1:]),
            replace(target, jump="none")]


def _hop(name: str, target: SshTarget) -> SshTarget:
    name = name.removeprefix("ssh://")
    user, _, place = name.rpartition("@")
    host, port = place, 22
    if place.startswith("["):
        host, closed, rest = place[1:].partition("]")
        if not closed:
            raise ValueError(name)
        port = int(rest.removeprefix(":") or 22)
    elif place.count(":") == 1:
        host, _, number = place.partition(":")
        port = int(number)
    if not host or not 0 < port < 65536:
        raise ValueError(name)
    return replace(target, name=host, addresses=(Address(host, port, source="ssh_config"),), user=user or None,
                   jump="", identity_files=())
