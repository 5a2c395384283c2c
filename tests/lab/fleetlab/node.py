"""One node: its files, its start, its end."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from .base import DIR, PATH, UID, USER, Json, LabError, background, each_process, run
from .netns import pids_in
from .traits import BUSYBOX, FAKE_NVIDIA, FAKE_ROCM, UNREACHABLE

# Becomes a node's PID 1. $1 the node's folder  $2 hostname  $3 llama binaries or ''  $4 models or ''
_BOOT = r"""set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"; mount -t proc proc proc; mount -t sysfs sysfs sys; mount --bind /dev dev
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
[ -z "$3" ] || mount --bind -o ro "$3" opt/fleetlab/llama
[ -z "$4" ] || mount --bind -o ro "$4" opt/fleetlab/models
hostname "$2"; pivot_root . .old; umount -l /.old
exec /bin/bash /etc/fleetlab/init
"""
# PID 1 of a node: keeps sshd and avahi-daemon running, reaps orphans.
_INIT = r"""rm -rf /run/* && mkdir -p /run/sshd /run/avahi-daemon
if [ -e /etc/fleetlab/readonlyhome ]; then
  mount --bind /home /home && mount -o remount,bind,ro /home
fi
if [ -e /etc/fleetlab/fulldisk ]; then
  cp -a /home/fleet /root/fleet && mount -t tmpfs -o size=256k,mode=700,uid=7700,gid=7700 tmpfs /home/fleet
  cp -a /root/fleet/. /home/fleet/ && cat /dev/zero >/home/fleet/filler 2>/dev/null
fi
keep() { log=$1; shift; while :; do "$@" >>"$log" 2>&1; sleep 0.5; done; }
[ -e /etc/fleetlab/nosshd ] || keep /var/log/sshd.log /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config &
[ ! -e /etc/avahi/services/ssh.service ] ||
  keep /var/log/avahi.log /usr/sbin/avahi-daemon --no-drop-root --no-chroot --no-rlimits &
while :; do wait; sleep 1; done
"""
_LLAMA = '#!/bin/sh\nexport LD_LIBRARY_PATH=/opt/fleetlab/llama\nexec /opt/fleetlab/llama/"${0##*/}" "$@"\n'
_AVAHI = """[server]\nhost-name={hostname}\nuse-ipv4=yes\nuse-ipv6=no\nallow-interfaces=eth0
enable-dbus=no\n[publish]\npublish-hinfo=no\npublish-workstation=no\n"""
_AVAHI_SSH = """<service-group><name replace-wildcards="yes">%h</name>
<service><type>_ssh._tcp</type><port>{port}</port></service></service-group>\n"""
_SSHD = """Port {port}\nListenAddress 0.0.0.0\nHostKey /etc/ssh/ssh_host_ed25519_key\nUsePAM no
KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPasswordAuthentication {by_password}
PubkeyAuthentication {by_key}\nLogLevel VERBOSE\nAcceptEnv LANG LC_*\nBanner {banner}
AllowTcpForwarding {forwarding}\nMaxStartups {startups}\n{sftp}"""
_MARKS = ("nogpu", "readonlyhome", "fulldisk", "nosshd")   # traits that show as /etc/fleetlab/TRAIT


class Files:
    """Writes into the upper layer of a node's overlay, before it boots."""

    def __init__(self, upper: Path) -> None:
        self._upper = upper

    def folder(self, path: str, mode: int = 0o755, owner: int = 0, *, hide: bool = False) -> None:
        """A folder; hide: not with what the host has there."""
        made = self._upper / path
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(mode)
        os.chown(made, owner, owner)
        if hide:
            os.setxattr(made, "trusted.overlay.opaque", b"y")

    def write(self, path: str, text: str, mode: int = 0o755, owner: int = 0) -> None:
        """A file with that text."""
        made = self._upper / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        made.chmod(mode)
        os.chown(made, owner, owner)

    def link(self, path: str, to: str) -> None:
        """A symbolic link."""
        (self._upper / path).symlink_to(to)

    def delete(self, path: Path) -> None:
        """Hide a file of the host: a device 0:0 is what overlayfs takes for a deletion."""
        with suppress(FileNotFoundError):
            os.mknod(self._upper / path.relative_to("/"), 0o020600, 0)


def make_files(node: Json, lab: Json) -> None:
    """The node's own files."""
    top, traits = DIR / "fs" / node["name"], set(node["traits"])
    upper = Files(top / "upper")
    for path in ("opt/fleetlab/llama", "opt/fleetlab/models", "usr/bin", "usr/local/bin", "../work", "../root"):
        upper.folder(path)
    for path in ("root", "tmp", "home", "run", "etc/ssh", "etc/avahi", "var/log", ".old"):
        upper.folder(path, 0o1777 if path == "tmp" else 0o755, hide=True)
    accepted = lab["locked_pubkey"] if "passphrase" in traits else lab["pubkey"]
    for home, owner in (("root", 0), (f"home/{USER}", UID)):
        upper.folder(home, 0o700, owner)
        upper.folder(f"{home}/.ssh", 0o700, owner)
        upper.write(f"{home}/.ssh/authorized_keys", accepted, 0o600, owner)
    _accounts(upper, node)
    _system(upper, node, traits)
    _tools(upper, traits, bool(lab["bin"]))
    key = top / "upper/etc/ssh/ssh_host_ed25519_key"
    run("ssh-keygen -qt ed25519 -N", "", "-C", node["name"], "-f", key)
    node["hostkey"] = " ".join(key.with_suffix(".pub").read_text().split()[:2])


def _accounts(upper: Files, node: Json) -> None:
    # '*' in shadow: no password, yet not locked ('!' would make sshd refuse keys too)
    secret = run("openssl passwd -6", node["password"]).strip() if node["password"] else "*"
    for path, line, mode in (("etc/passwd", f"{USER}:x:{UID}:{UID}::/home/{USER}:{node['shell']}", 0o644),
                             ("etc/group", f"{USER}:x:{UID}:", 0o644),
                             ("etc/shadow", f"{USER}:{secret}:19000:0:99999:7:::", 0o640)):
        upper.write(path, Path("/", path).read_text() + line + "\n", mode)


def _system(upper: Files, node: Json, traits: set[str]) -> None:
    noisy, hostname, password = "noisy" in traits, node["hostname"], node["password"]
    upper.write("etc/fleetlab/init", _INIT)
    for trait in _MARKS:
        if trait in traits:
            upper.write(f"etc/fleetlab/{trait}", "")
    upper.write("etc/hostname", f"{hostname}\n")
    upper.write("etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {hostname}\n")
    upper.write("etc/machine-id", os.urandom(16).hex() + "\n")
    upper.write("etc/resolv.conf", "# none in the lab\n")
    upper.write("etc/avahi/avahi-daemon.conf", _AVAHI.format(hostname=hostname))
    if "nomdns" not in traits:
        upper.write("etc/avahi/services/ssh.service", _AVAHI_SSH.format(port=node["port"]))
    upper.write("etc/ssh/sshd_config", _SSHD.format(
        port=node["port"], by_password="yes" if password else "no", by_key="no" if password else "yes",
        banner="/etc/ssh/banner" if noisy else "none", forwarding="no" if "noforward" in traits else "yes",
        startups="1:100:1" if "busy" in traits else "100",
        sftp="" if "nosftp" in traits else "Subsystem sftp /usr/lib/openssh/sftp-server\n"))
    upper.write("etc/motd", "Welcome to the noisy node.\n" if noisy else "")
    if noisy:
        upper.write("etc/ssh/banner", "*** noisy node: authorised use only ***\n")
        upper.write(f"home/{USER}/.bashrc", "echo 'noisy: loading modules...'\necho 'noisy: no terminal' >&2\n")


def _tools(upper: Files, traits: set[str], have_llama: bool) -> None:
    if traits & {"nvidia", "nogpu"}:
        upper.write("usr/local/bin/nvidia-smi", FAKE_NVIDIA)
    if "rocm" in traits:
        upper.write("usr/local/bin/rocm-smi", FAKE_ROCM)
    if have_llama and "nollama" not in traits:
        upper.write("usr/local/bin/llama-server", _LLAMA)
        upper.write("usr/local/bin/ggml-rpc-server", _LLAMA)
    if "busybox" in traits:
        upper.link("usr/bin/sh", BUSYBOX)
    if "nopython" in traits:
        for program in Path("/usr").glob("**/bin/python3*"):
            upper.delete(program)


def init_of(name: str) -> int | None:
    """The host's PID of the node's PID 1, or None when the node is not running."""
    ours = set(pids_in(name))
    return next((pid for pid, status in each_process(lambda proc: (proc / "status").read_text())
                 if pid in ours and re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE)), None)


def boot(node: Json, lab: Json) -> None:
    """Start the node unless it runs. `down` and `kill` need no record of it: see pids_in()."""
    if init_of(name := node["name"]):
        return
    unshare = f"nsenter --net=/run/netns/{name} unshare --mount --uts --ipc --pid --fork --kill-child".split()
    background([*unshare, "/bin/bash", "-c", _BOOT, "fleetlab", DIR / "fs" / name, node["hostname"],
                "" if "nollama" in node["traits"] else lab["bin"], lab["models"]], name)


def answers(node: Json, timeout: float = 2.0) -> bool:
    """Whether the node's sshd greets the root side."""
    try:
        with socket.create_connection((node["addr"], node["port"]), timeout) as opened:
            return opened.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_ready(nodes: list[Json]) -> None:
    """Wait until every node that can answer does."""
    until = time.monotonic() + 60
    for node in (node for node in nodes if not UNREACHABLE & set(node["traits"])):
        while not answers(node):
            if time.monotonic() > until:
                raise LabError(f"no sshd on {node['name']}; see {DIR}/log")
            time.sleep(0.05)


def enter(node: Json, argv: list[str], user: str) -> list[str]:
    """The command that runs argv inside the node; one string is a shell line."""
    pid = init_of(node["name"])
    if pid is None:
        raise LabError(f"{node['name']} is not running")
    uid, home = (0, "/root") if user == "root" else (UID, f"/home/{USER}")
    inside = f"nsenter -t {pid} -m -u -i -n -p -r/proc/{pid}/root -S {uid} -G {uid} -- env -i -C {home}".split()
    return [*inside, f"PATH={PATH}", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8",
            f"TERM={os.environ.get('TERM', 'dumb')}", *(["/bin/sh", "-c"] if len(argv) == 1 else []), *argv]

