"""How fast a node's disk gives experts: measured there, random pieces as large as one matrix of an expert.

Eight readers side by side, as the shim reads them, for a second and a half or 512 MiB; past the page cache where the
file system can, so that nothing is evicted for it and nothing of it is a hit.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fleet.errors import OperationFailed
from fleet.nodes.transport import Transport
from fleet.text import visible

_TIMEOUT = 60.0                # seconds: a card that gives 2 MB/s has 16 MB to finish
_WHY = {"python3": "there is no python3", "small": "the file is too small to tell"}


async def random_read_rate(transport: Transport, path: str, piece: int) -> float:
    """Bytes a second.

    Args:
        path: of the model there.
        piece: bytes that are read at once: of one matrix of one expert.

    Raises:
        OperationFailed: it could not be measured.
        FleetError: the node does not answer.
    """
    done = await transport.run(_script(), (path, str(piece)), timeout=_TIMEOUT)
    words = done.text.split()
    if len(words) == 3 and words[0] == "rate":
        try:
            count, seconds = int(words[1]), float(words[2])
        except ValueError:
            count, seconds = 0, 0.0
        if 0 < count < 1 << 62 and 0 < seconds < 3600:
            return count / seconds
    why = _WHY.get(words[1] if len(words) == 2 and words[0] == "none" else "",
                   visible(" ".join((done.error_text or done.text).split()))[-200:] or "it gives no answer")
    raise OperationFailed(f"How fast the disk of {path} on {transport.name} is could not be measured: {why}.",
                          "Say it yourself: --disk-rate 500MB.", code="disk")


@cache
def _script() -> str:
    return files("fleet.experts").joinpath("disk.sh").read_text(encoding="utf-8")
