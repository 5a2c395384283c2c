"""What makes a node odd, and the canned tools of the GPUs that it does not have."""

from __future__ import annotations

import os

TRAITS = {
    "plain": "key-only login, bash, python3, llama binaries, mDNS",
    "password": "password-only login",
    "passphrase": "takes the locked key only: a passphrase is asked for",
    "fish": "login shell is fish (not POSIX)",
    "csh": "login shell is tcsh (not POSIX)",
    "busybox": "/bin/sh is busybox",
    "noisy": ".bashrc prints on stdout and stderr even without a terminal; banner and motd",
    "nopython": "no python3 anywhere in PATH",
    "nollama": "no llama-server and no ggml-rpc-server",
    "nomdns": "does not announce itself",
    "nosftp": "sshd without the SFTP subsystem",
    "noforward": "sshd forbids TCP forwarding",
    "busy": "sshd bears one open sign-in at a time and closes all others (MaxStartups)",
    "port2222": "sshd on port 2222",
    "newkey": "its host key is not in the lab's known_hosts",
    "changedkey": "the lab's known_hosts holds another host key for it",
    "readonlyhome": "home is mounted read-only",
    "fulldisk": "home is a file system of 256 kB without a free byte",
    "slow": "100 ms delay, 5 Mbit/s",
    "lossy": "2 ms delay, 10 % of frames lost in each direction",
    "dead": "in lab.json, but its cable is out",
    "drop": "answers ARP and drops all the rest: a connect times out",
    "nosshd": "up, but nothing listens on its SSH port",
    "nvidia": "FAKE nvidia-smi in PATH (canned RTX 3090)",
    "rocm": "FAKE rocm-smi in PATH (canned RX 7900 XT)",
    "memN": "N MiB of memory for all that runs there, as mem512 (see memory.py)",
    "nogpu": "FAKE nvidia-smi in PATH that fails as the real one does without a driver",
}
UNREACHABLE = {"dead", "drop", "nosshd"}   # traits of nodes that never get ready
SHELLS = {"fish": "/usr/bin/fish", "csh": "/usr/bin/tcsh"}
BUSYBOX = "/usr/bin/busybox"


def available() -> list[str]:
    """The traits that this machine has the programs for."""
    needs = {**SHELLS, "busybox": BUSYBOX}
    return [trait for trait in TRAITS if trait != "memN" and os.path.exists(needs.get(trait, "/"))]


FAKE_NVIDIA = r"""#!/bin/sh
# fleetlab FAKE nvidia-smi: canned answers, for tests of detection only. There is no GPU here.
[ ! -e /etc/fleetlab/nogpu ] || { echo "NVIDIA-SMI has failed because it couldn't communicate with" \
  "the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."; exit 9; }
id=GPU-fa4efa4e-0000-4000-8000-000000000000 gpu="NVIDIA GeForce RTX 3090" IFS=', '
for a; do case $a in --query-gpu=*) q=${a#*=};; --format=*) f=${a#*=};;
  -L) echo "GPU 0: $gpu (UUID: $id)"; exit;; esac; done
for k in $q; do u=; case $k in
    index) x=0;; name) x=$gpu;; uuid) x=$id;; pci.bus_id) x=00000000:01:00.0;; compute_cap) x=8.6;;
    driver_version) x=550.90.07;; temperature.gpu) x=41;; power.draw) x=38.52 u=W;; power.limit) x=350.00 u=W;;
    memory.total) x=24576 u=MiB;; memory.used) x=1532 u=MiB;; memory.free) x=23044 u=MiB;; utilization.gpu) x=7 u=%;;
    *) printf 'Field "%s" is not a valid field to query.\n\n' "$k"; exit 2;;
  esac
  h="$h, $k${u:+ [$u]}"; case $f in *nounits*) u=;; esac; r="$r, $x${u:+ $u}"
done
[ -n "$q" ] || { echo "fleetlab FAKE nvidia-smi: only -L and --query-gpu= are canned"; exit; }
case $f in *noheader*) ;; *) echo "${h#, }";; esac; echo "${r#, }"
"""
FAKE_ROCM = r"""#!/bin/sh
# fleetlab FAKE rocm-smi: canned answers, for tests of detection only. There is no GPU here.
for a; do case $a in --json|--csv) f=$a;; --showuse) p="$p|GPU use (%)=3";;
  --showtemp) p="$p|Temperature (Sensor edge) (C)=44.0";;
  --showmeminfo) p="$p|VRAM Total Memory (B)=21458059264|VRAM Total Used Memory (B)=27856896";;
  --showproductname) p="$p|Card Series=Radeon RX 7900 XT|Card Model=0x744c|Card SKU=D70401XT|GFX Version=gfx1100";;
esac; done
IFS='|'; for kv in ${p#|}; do k=${kv%%=*} x=${kv#*=}; h="$h,$k" c="$c,$x" j="$j, \"$k\": \"$x\""
  [ -n "$f" ] || printf 'GPU[0]\t\t: %s: %s\n' "$k" "$x"; done
case $f in --json) echo "{\"card0\": {${j#, }}}";; --csv) echo "device$h"; echo "card0$c";; esac
"""
