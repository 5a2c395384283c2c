"""sh has one set of names for all functions of a script: what state.sh sets and what the probe keeps must not meet."""

import re
from importlib.resources import files

from fleet.nodes.records import STATE_SH

# set and used up within a few lines by both, with no call in between
PASSING = {"qd_count", "qd_text", "qd_pid", "qd_above", "qd_size", "qd_line"}

TOLD = {"qd_owner_pids", "qd_news"}     # what state.sh tells the probe on purpose: whose sockets to look at, and why


def assigned(script: str) -> set[str]:
    names = set(re.findall(r"\b(qd_\w+)=", script))
    for reads in re.findall(r"\bread (?:-r )?((?:\w+ ?)+)", script):
        names.update(name for name in reads.split() if name.startswith("qd_"))
    return names


def test_the_state_folder_script_changes_no_variable_that_the_probe_keeps():
    folder = files("fleet.nodes")
    probe = folder.joinpath("probe.sh").read_text() + folder.joinpath("probe_full.sh").read_text()
    assert assigned(STATE_SH) & assigned(probe) <= PASSING | TOLD
