"""The Situation of a bring-up, for the compatibility rules: from what was decided and read, with nothing asked anew."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Interface

from fleet.config.schema import SpeculationMode
from fleet.model import DeviceKind, Interface, LinkKind, Node, ServiceRecord
from fleet.operations.arrangement import Arrangement, Seat
from fleet.operations.hands import record_of
from fleet.planning.draft_flags import draft_words
from fleet.planning.situation import Place, Runtime, Situation, Speculating, Streamed, option, option_list
from fleet.planning.traits import traits_of
from fleet.runtimes.binaries import Flags

USUAL_LENGTH = 3                   # tokens of a draft
MOST_DRAFTED = 64
NO_RDMA = "GGML_RPC_NO_RDMA"
_INFINIBAND = "ib"                 # Linux names IP over InfiniBand ib0, ibp65s0 ...


def situation_of(arrangement: Arrangement) -> Situation:
    """What the rules should look at before this arrangement is brought up."""
    model, head = arrangement.choice.model, arrangement.choice.head
    # The later ones win, as in the command.
    arguments = (*draft_words(model.draft), *arrangement.head_config.extra_args, *model.extra_args)
    return Situation(
        runtime=Runtime.LLAMA,
        head=_head(arrangement, head),
        workers=tuple(_worker(arrangement, seat) for seat in arrangement.seats),
        local_devices=len(arrangement.local_devices),
        model=traits_of(arrangement.header),
        split_mode=option(arguments, "-sm", "--split-mode") or "",
        kv_type_k=option(arguments, "-ctk", "--cache-type-k") or model.kv_type_k,
        kv_type_v=option(arguments, "-ctv", "--cache-type-v") or model.kv_type_v,
        flash_attention=option(arguments, "-fa", "--flash-attn") or model.flash_attention,
        slots=_number(option(arguments, "-np", "--parallel")) or model.slots,
        speculating=_speculating(arguments, arrangement.head_flags),
        streamed=_streamed(arrangement, arguments),
    )


def _streamed(arrangement: Arrangement, arguments: Sequence[str]) -> Streamed | None:
    """Where not all experts fit into the budget; a llama-server that is told no length drafts 3 tokens or more."""
    streaming, model = arrangement.streaming, arrangement.choice.model
    if streaming is None or streaming.needs.room(streaming.bound.limit) >= streaming.needs.experts:
        return None
    length = (_number(option(arguments, "--spec-draft-n-max", "--draft-max"))
              or (model.draft.length if model.draft else None) or USUAL_LENGTH)
    outside = model.speculation is not None and model.speculation.mode is not SpeculationMode.OFF
    return Streamed(1 + min(length, MOST_DRAFTED), outside)


def _head(arrangement: Arrangement, node: Node) -> Place:
    config = arrangement.head_config
    return Place(node.name, config.port, config.bind, binary=arrangement.choice.head_binary,
                 protocol=arrangement.protocol, vendors=vendors_of(node), rdma_off=NO_RDMA in config.env,
                 key_file=bool(config.api_key_file), devices=len(arrangement.local_devices))


def _worker(arrangement: Arrangement, seat: Seat) -> Place:
    worker, head = seat.choice, arrangement.choice.head
    node, config = worker.node, worker.config
    record = record_of(node, seat.service) if seat.service else None
    return Place(
        node.name, config.port, seat.bind, dial=seat.dial_host, binary=worker.binary,
        protocol=arrangement.spoken.get(seat.endpoint), running_build=running_build(record), managed=config.managed,
        link=LinkKind.LOOPBACK if node.name == head.name else link_between(node, head, seat),
        tunnelled=seat.tunnelled, devices=max(1, len(config.devices)), vendors=vendors_of(node, config.devices),
        rdma_off=NO_RDMA in config.env, rdma_addresses=_rdma_addresses(node))


def running_build(record: ServiceRecord | None) -> str:
    """The build that a service of ours was started from, "" when none runs."""
    return record.build if record is not None and record.alive else ""


def vendors_of(node: Node, wanted: Sequence[str] = ()) -> tuple[DeviceKind, ...]:
    """The kinds of GPUs that a process on the node would use; an integrated one just when it is named."""
    devices = node.reading.devices if node.reading else ()
    used = [device.kind for device in devices if device.kind is not DeviceKind.CPU
            and (device.name in wanted if wanted else not device.integrated)]
    return tuple(dict.fromkeys(used))


def link_between(node: Node, head: Node, seat: Seat) -> LinkKind:
    """What carries the traffic, as the interfaces of both ends tell: the worse of the two counts."""
    if seat.tunnelled:
        return node.address.kind if node.address else LinkKind.UNKNOWN
    return worse_link(node, head, seat.bind)


def worse_link(node: Node, head: Node, address: str) -> LinkKind:
    """The kind of the interface that has `address`, or of the head's in the same network where that is worse."""
    theirs = _interface(node, address)
    ours = next((interface for interface in _interfaces(head) if theirs is not None and _share(interface, theirs)),
                None)
    kinds = [interface.kind for interface in (theirs, ours) if interface is not None]
    return next((kind for kind in (LinkKind.VPN, LinkKind.WIFI) if kind in kinds),
                kinds[0] if kinds else LinkKind.UNKNOWN)


def _interfaces(node: Node) -> tuple[Interface, ...]:
    return node.reading.interfaces if node.reading else ()


def _interface(node: Node, address: str) -> Interface | None:
    return next((interface for interface in _interfaces(node) if address in _plain(interface)), None)


def _plain(interface: Interface) -> list[str]:
    return [address.partition("/")[0] for address in interface.addresses]


def _share(one: Interface, other: Interface) -> bool:
    """Whether two interfaces have an IPv4 network in common."""
    return bool(_networks(one) & _networks(other))


def _networks(interface: Interface) -> set[str]:
    found = set()
    for text in interface.addresses:
        try:
            network = IPv4Interface(text).network
        except ValueError:
            continue
        if network.prefixlen < 32:
            found.add(str(network))
    return found


def _rdma_addresses(node: Node) -> tuple[str, ...]:
    return tuple(address for interface in _interfaces(node) if interface.name.startswith(_INFINIBAND) and interface.up
                 for address in _plain(interface) if ":" not in address)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _speculating(arguments: Sequence[str], flags: Flags) -> Speculating:
    flag = flags.find("--spec-type")
    return Speculating(
        option_list(arguments, "--spec-type"),
        option(arguments, "-md", "--model-draft", "--spec-draft-model") or "",
        flag.choices if flag else (), has_modes=flag is not None)
