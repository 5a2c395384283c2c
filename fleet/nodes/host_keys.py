"""Host keys: what the known_hosts files say of a node, and the one way in which we add to them.

A node is known by several names: the one in use decides whether a key has *changed*; those that a
person or a file gave it may vouch for it, since whoever shows the key has proved to hold it. What the
network says (mDNS) vouches for nothing: anybody can announce their own address under the name of a
node, so a key at such an address has to be none other than the node's where the node's is known.
Only plain keys are judged here; `@cert-authority` and `@revoked` of certificates are the SSH library's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from re import IGNORECASE, Pattern, compile

from fleet.errors import HostKeyChanged, HostKeyUnknown

LARGEST = 16 * 1024 * 1024    # bytes of a known_hosts file that we are willing to read


@dataclass(frozen=True, slots=True)
class HostKey:
    """A public host key as it stands on the wire."""

    algorithm: str                # "ssh-ed25519"; an RSA key's is "ssh-rsa" whatever signs
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` shows it: SHA256:..."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class KnownHost:
    """One line of a known_hosts file."""

    file: str
    line: int
    marker: str                   # "", "cert-authority" or "revoked"
    patterns: str                 # as written: names, patterns, or one hashed name
    key: HostKey

    def speaks_of(self, name: str) -> bool:
        """Whether the line is about `name` ("host" or "[host]:port")."""
        if self.patterns.startswith("|"):
            return _is_hash_of(self.patterns, name)
        found = False
        for pattern in self.patterns.split(","):
            if _pattern(pattern.removeprefix("!")).fullmatch(name):
                if pattern.startswith("!"):
                    return False
                found = True
        return found


class Verdict(StrEnum):
    """What known_hosts says of a key."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the line that it rests on (None for UNKNOWN)."""

    verdict: Verdict
    line: KnownHost | None = None


def name_of(host: str, port: int) -> str:
    """How known_hosts writes a host that listens on `port`."""
    host = host.lower()
    return host if port == 22 else f"[{host}]:{port}"


def read(files: Sequence[str]) -> tuple[KnownHost, ...]:
    """All lines of these files that can be read; a file that is not there holds none."""
    return tuple(known for file in dict.fromkeys(os.path.expanduser(f) for f in files) for known in _read_file(file))


def judge(known: Sequence[KnownHost], key: HostKey, names: Sequence[str], vouching: Sequence[str] = (), *,
          denying: Sequence[str] = ()) -> Judgement:
    """What the lines say of `key`.

    Args:
        known: the lines.
        key: what the node showed.
        names: the node's names that a line with another key would contradict.
        vouching: more of its names: a line with this key is as good there, one with another says nothing.
        denying: more of its names, where `names` are the network's word alone: a line with another key counts
            before what is known of `names`.
    """
    def find(among: Sequence[str], *, same: bool) -> KnownHost | None:
        return next((line for line in known if not line.marker and (line.key == key) is same
                     and any(map(line.speaks_of, among))), None)

    for line in known:
        if line.marker == "revoked" and line.key == key and any(map(line.speaks_of, (*names, *vouching))):
            return Judgement(Verdict.REVOKED, line)
    if (line := find((*vouching, *denying), same=True)) is not None:
        return Judgement(Verdict.KNOWN, line)
    if (line := find(denying, same=False)) is not None:
        return Judgement(Verdict.CHANGED, line)
    if (line := find(names, same=True)) is not None:
        return Judgement(Verdict.KNOWN, line)
    line = find(names, same=False)
    return Judgement(Verdict.CHANGED, line) if line else Judgement(Verdict.UNKNOWN)


def algorithms(known: Sequence[KnownHost], names: Sequence[str]) -> tuple[str, ...]:
    """Kinds of key that are known for these names: to be asked for first, lest another kind look new."""
    return tuple(dict.fromkeys(line.key.algorithm for line in known
                               if not line.marker and any(map(line.speaks_of, names))))


def authorities(known: Sequence[KnownHost], names: Sequence[str], marker: str) -> tuple[HostKey, ...]:
    """Keys of the lines with `marker` that speak of one of these names."""
    return tuple(line.key for line in known if line.marker == marker and any(map(line.speaks_of, names)))


def append(file: str, name: str, key: HostKey) -> None:
    """Add a line for `name`. What is there is never rewritten; the folder is made 0700, the file 0600.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(file).expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{name} {key.algorithm} {base64.b64encode(key.blob).decode()}\n".encode()
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(opened).st_size
        if size and os.pread(opened, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(opened, line)    # one write with O_APPEND: lines of two writers do not mix
        os.fsync(opened)
    finally:
        os.close(opened)


def unknown(node: str, where: str, key: HostKey, ssh: str) -> HostKeyUnknown:
    """Nobody vouched for the key. `ssh` is the command that would ask."""
    return HostKeyUnknown(
        f"{node} at {where} shows a host key that was never seen before: {key.algorithm} {key.fingerprint}.",
        f"Compare the fingerprint, then accept it with `quarterdeck nodes --accept-new` or by connecting once with "
        f"`{ssh}`.")


def changed(node: str, where: str, key: HostKey, line: KnownHost, name: str) -> HostKeyChanged:
    """known_hosts says otherwise."""
    return HostKeyChanged(
        f"{node} at {where} shows another host key than {line.file} line {line.line} says: "
        f"{key.fingerprint} in place of {line.key.fingerprint}.",
        f"If it was reinstalled, remove that line with `ssh-keygen -f {shlex.quote(line.file)} "
        f"-R {shlex.quote(name)}`; if it was not, another machine answers in its place.")


def revoked(node: str, where: str, line: KnownHost | None) -> HostKeyChanged:
    """known_hosts says that this key must not be trusted any more."""
    at = f"{line.file} line {line.line}" if line else "known_hosts"
    return HostKeyChanged(f"{node} at {where} shows a host key that {at} revokes.",
                          "Give the node a new host key; this one is not to be trusted.", code="host-key-revoked")


def _read_file(file: str) -> list[KnownHost]:
    try:
        with open(file, "rb") as opened:
            text = opened.read(LARGEST).decode("utf-8", "replace")
    except OSError:
        return []
    lines = (_parse(file, number, line) for number, line in enumerate(text.split("\n"), 1))
    return [line for line in lines if line is not None]


def _parse(file: str, number: int, text: str) -> KnownHost | None:
    words = text.split()
    marker = words.pop(0)[1:] if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or marker not in ("", "cert-authority", "revoked"):
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except ValueError:
        return None
    return KnownHost(file, number, marker, words[0], HostKey(words[1], blob))


def _is_hash_of(hashed: str, name: str) -> bool:
    try:
        _, method, salt, digest = hashed.split("|")
        salt_bytes, digest_bytes = base64.b64decode(salt), base64.b64decode(digest)
    except ValueError:
        return False
    return method == "1" and hmac.digest(salt_bytes, name.encode("utf-8", "replace"), "sha1") == digest_bytes


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> Pattern[str]:
    # known_hosts knows * and ?, not fnmatch's [...]: "[host]:2222" is meant as it stands
    return compile(translate(pattern.replace("[", "[[]")), IGNORECASE)
