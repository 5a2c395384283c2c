"""What can go wrong while a file is moved, in the two sentences that a person reads.

    SwarmError
    ├── ManifestRefused   a manifest is not what it should be
    ├── StoreError        the file, its folder or its disk
    ├── PeerFailed        one peer: `kind` says how
    └── Stopped           somebody asked the pull to stop; nothing that was finished is lost

This package knows nothing of the rest of Quarterdeck (it runs on nodes alone), so its errors are
its own. `what`, `remedy` and `code` mean what they mean in fleet/errors.py.
"""

from __future__ import annotations


class SwarmError(Exception):
    """`what` is wrong and where, the `remedy` ("" when there is none) and a stable `code` for scripts."""

    code = "swarm"

    def __init__(self, what: str, remedy: str = "", *, code: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy
        if code:
            self.code = code

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}".strip()


class ManifestRefused(SwarmError):
    """A manifest breaks a rule; `what` names the rule and the place."""

    code = "manifest"


class StoreError(SwarmError):
    """A file cannot be written, read or put in place. Codes: file, full, exists, changed, whole."""

    code = "file"


class Stopped(SwarmError):
    """The pull was asked to stop."""

    code = "stopped"


GONE = "gone"            # no connection, or it was cut
SLOW = "slow"            # connected, and nothing came within its time
SHORT = "short"          # fewer bytes than were promised
MISSING = "missing"      # 404 for a piece that its bitfield names
REFUSED = "refused"      # 401 or 403
BUSY = "busy"            # 503: it has too many guests
NONSENSE = "nonsense"    # no HTTP, or not what was asked for
WRONG = "wrong"          # the bytes are not the piece's


class PeerFailed(SwarmError):
    """One peer did not do its part: `kind` is one of the words above."""

    code = "peer"

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what, "")
        self.kind = kind
