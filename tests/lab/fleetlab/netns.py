"""The cables: network namespaces on one bridge, plugged and unplugged, made slow or lossy."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

from .base import BRIDGE, DIR, background, each_process, end, run


def pids_in(name: str) -> list[int]:
    """Processes in the network namespace NAME: just these are what kill and down may end."""
    netns = Path("/run/netns", name)
    return [pid for pid, have in each_process(lambda proc: (proc / "ns/net").stat())
            if netns.exists() and os.path.samestat(have, netns.stat())]


def wires(name: str = r"fl-\d+") -> list[int]:
    """Processes that carry the frames of a slow cable, for one node or for all."""
    return [pid for pid, argv in each_process(lambda proc: (proc / "cmdline").read_text(errors="replace"))
            if re.search(rf"\0fleetlab\.wire\0{name}\0$", argv)]


def raise_port(device: str, master: str | None = None) -> None:
    """Root-side interface up, as a port of a bridge, with no IPv6 chatter of its own."""
    Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6").write_text("1")
    run(f"ip link set {device} {f'master {master}' if master else ''} up")


def attach(name: str, address: str, mac: str) -> None:
    """Namespace NAME with eth0 = ADDRESS; its other end, interface NAME, is a port of the bridge."""
    run(f"ip netns add {name}")
    run(f"ip netns exec {name} sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    run(f"ip link add {name} type veth peer name eth0 address {mac} netns {name}")
    raise_port(name, BRIDGE)
    run(f"ip -n {name} link set lo up")
    run(f"ip -n {name} addr add {address}/24 brd + dev eth0")
    run(f"ip -n {name} link set eth0 up")


def cable(name: str, state: str) -> None:
    """up, down (no carrier), or silent: the node can send nothing but ARP."""
    run(f"ip -n {name} rule del pref 1", check=False)
    if state == "silent":
        run(f"ip -n {name} rule add pref 1 blackhole")
    run(f"ip link set {name} {'down' if state == 'down' else 'up'}")


def cable_state(name: str) -> str:
    """up, cut or silent."""
    if "LOWER_UP" not in run(f"ip link show {name}"):
        return "cut"
    return "silent" if "blackhole" in run(f"ip -n {name} rule") else "up"


def set_link(name: str, delay_ms: float, rate_mbit: float, loss_pct: float) -> None:
    """Shape a node's cable. For delay or loss it runs node - flb-K (2-port bridge) - wire - fl0."""
    for tc, device in ((f"tc -n {name}", "eth0"), ("tc", name)):
        run(f"{tc} qdisc del dev {device} root", check=False)
        if rate_mbit:
            run(f"{tc} qdisc add dev {device} root tbf rate {rate_mbit}mbit burst 128kb latency 100ms")
    box, near, far = (name.replace("fl-", f"{prefix}-") for prefix in ("flb", "flx", "flw"))
    if not (delay_ms or loss_pct):
        run(f"ip link set {name} master {BRIDGE}")
        end(lambda: wires(name))
        for device in (box, near, far):
            run(f"ip link del {device}", check=False)
        return
    (DIR / f"wire-{name}.json").write_text(json.dumps([delay_ms / 1000, loss_pct / 100]))
    if carried := wires(name):
        os.kill(carried[0], signal.SIGHUP)   # it reads the file again; connections go on
        return
    run(f"ip link add {box} type bridge mcast_snooping 0")
    raise_port(box)
    for device, master in ((near, box), (far, BRIDGE)):
        run(f"ip tuntap add {device} mode tap vnet_hdr")
        raise_port(device, master)
    background(["nohup", sys.executable, "-m", "fleetlab.wire", name], name)
    run(f"ip link set {name} master {box}")
