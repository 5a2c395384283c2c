"""A hit rate without the shim: what a process read from disk, held against what its experts take. Pure.

    at least 1 - read / needed          needed = tokens * bytes of the experts of one token
    about    1 - read / needed * slice / (slice + 2 * readahead)

A page fault in a slice of an expert reads on behind its end and before its beginning, which nobody asked for: on the
average one readahead at each of its two ends. Measured with 278 528 bytes a slice (true, lower bound, corrected): .909,
.807, .90 at half a model and 128 KB of readahead; .929, .909, .927 at 32 KB; .799, .728, .78 at 30 % and 32 KB. With
the shim, which asks for whole experts, the lower bound is right as it is: .9445 against .943, .826 against .823.

A prompt needs the union of the experts of all of its tokens in each pass, so it is no token times anything: a window
with a prompt in it gives nothing.
"""

from __future__ import annotations

from fleet.experts.figures import NOTHING, RESTARTED, Figure, Kind, unknown

KIB = 1024
READ = "bytes read from disk against bytes needed"
_SLACK = 1.1                   # of what could be needed at the most, readahead and all
_LEAST = 0.25                  # of what is read must be asked for: below it the correction was never held against truth
_OUTSIDE = 0.02                # of the experts' bytes that may be in memory without being in the limit's page cache


def estimated_hit_rate(read: int | None, tokens: int | None, token_bytes: int, *, slice_bytes: int,
                       readahead: int | None, prompts: bool = False, resident: int | None = None,
                       cached: int | None = None) -> Figure:
    """The hit rate of a window of decoding.

    Args:
        read: bytes that the process read from disk in it (read_bytes of /proc/PID/io); None = not told.
        tokens: that were decoded in it; None = not told.
        token_bytes: of the experts of one token.
        slice_bytes: of one matrix of one expert.
        readahead: KB that the kernel reads ahead on that disk; 0 where the shim reads whole experts; None = not known.
        prompts: a prompt was read in the window, too.
        resident: bytes of the model that are in memory; None = not known.
        cached: bytes in the page cache of the head's own group; None = not known, or it has none.
    """
    if read is None:
        return unknown(READ, "The kernel does not tell us what that process reads: it is another user's.")
    if tokens is None:
        return unknown(READ, "The head does not tell how many tokens it wrote (--metrics).")
    if read < 0 or tokens < 0:
        return unknown(READ, RESTARTED)
    if not tokens or token_bytes <= 0 or slice_bytes <= 0:
        return unknown(READ, NOTHING)
    if prompts:
        return unknown(READ, "A prompt was read in between, which needs other experts than decoding.")
    if resident is not None and cached is not None and resident - cached > _OUTSIDE * resident:
        return unknown(READ, "A part of the model is in memory outside the limit: it looks like hits.")
    needed = tokens * token_bytes
    low = max(0.0, 1 - read / needed)
    if readahead is None:
        return unknown(READ, "How far the kernel reads ahead on that disk is not known.", low)
    part = slice_bytes / (slice_bytes + 2 * readahead * KIB)
    if part < _LEAST:
        return unknown(READ, f"The kernel reads {readahead} KB ahead there: what was asked for drowns in it.", low)
    if read * part > needed * _SLACK:
        return unknown(READ, "More was read than the experts could need: something else reads in that process.")
    return Figure(max(low, 1 - read / needed * part), Kind.ESTIMATED, READ, low)
