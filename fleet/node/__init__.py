"""Moving a model's pieces between machines: what runs on a node and here, on Python 3.9's own library alone.

Nothing in this package imports anything else of Quarterdeck, so that it goes to a node as one zipapp.
"""

from __future__ import annotations

from .access import Access, parse_network, read_token
from .hashing import create_manifest
from .limits import Throttle, parse_rate
from .manifest import FileEntry, Manifest, Piece, find_manifest, load_manifest, parse_manifest
from .progress import Banned, Note, PeerChange, PeerLine, PieceDone, Progress, as_line
from .puller import Outcome, Puller
from .seeder import PORT, Seeder
from .store import PULL, REPAIR, SEED, Store, mark_source
from .trouble import ManifestRefused, PeerFailed, Stopped, StoreError, SwarmError

__all__ = [
    "PORT", "PULL", "REPAIR", "SEED", "Access", "Banned", "FileEntry", "Manifest", "ManifestRefused", "Note", "Outcome",
    "PeerChange", "PeerFailed", "PeerLine", "Piece", "PieceDone", "Progress", "Puller", "Seeder", "Stopped", "Store",
    "StoreError", "SwarmError", "Throttle", "as_line", "create_manifest", "find_manifest", "load_manifest",
    "mark_source", "parse_manifest", "parse_network", "parse_rate", "read_token",
]
