"""What stands on the first frame, and the shape of the tables. Knows none of the fleet's records.

Apart from the other modules here because those import `fleet.model`: the records take 40 ms of processor to
define, and the first frame, which shows none of them, need not wait for that.
"""

from __future__ import annotations

from widgets.row_spec import Column
from widgets.spans import Keep, Span, Tone, line

NODES = (
    Column("state", "state", 4, 13),
    Column("name", "node", 5, 16, keep=Keep.BOTH),
    Column("kind", "kind", 4, 9, need=5),
    Column("address", "address", 9, 21, need=4, keep=Keep.END),
    Column("devices", "devices", 8, 17, need=3),
    Column("memory", "GiB used/total", 16, 28, need=1, grow=True),
    Column("services", "services", 14, 30, need=2, grow=True),
    Column("age", "age", 4, 8, right=True),
)
SERVICES = (
    Column("state", "state", 4, 10),
    Column("node", "node", 5, 14, keep=Keep.BOTH),
    Column("service", "service", 8, 20, keep=Keep.END),
    Column("doing", "doing", 22, 44, need=1, grow=True),
    Column("port", "port", 5, 5, need=3, right=True),
    Column("build", "build", 6, 8, need=4),
    Column("pid", "pid", 5, 8, need=2, right=True),
)
PLACEMENT = (
    Column("device", "device", 12, 34, grow=True),
    Column("planned", "planned", 8, 20),
    Column("real", "real", 8, 11, right=True),
    Column("share", "of the model", 12, 22, need=1, grow=True),
)

BRAND = Span("Quarterdeck", Tone.ACCENT)
HEAD = (line(BRAND), line(Span("starting the engine ...", Tone.MUTED)))
FOOT = (line(Span("◌ reading this machine ...", Tone.MUTED)), ())
READING = (line(Span("◌ ", Tone.ACCENT), "reading this machine ..."),)
