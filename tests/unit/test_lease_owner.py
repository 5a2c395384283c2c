"""Who holds a lease, and whether he lives."""

import os
import socket
import subprocess
import sys

from fleet.operations.lease import is_dead, owner

HERE = socket.gethostname()


def test_we_live_and_a_clock_that_was_set_does_not_kill_us():
    host, pid, began = owner().rsplit(":", 2)
    assert (host, int(pid)) == (HERE, os.getpid())
    assert not is_dead(owner())
    assert not is_dead(f"{host}:{pid}:{int(began) + 1}")
    assert owner() is owner()


def test_a_process_that_ended_is_dead_and_so_is_one_whose_number_another_has():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert is_dead(f"{HERE}:{done.pid}:1700000000")
    assert is_dead(f"{HERE}:{os.getpid()}:1000000000")
    assert is_dead(f"{HERE}:{10**30}:1700000000")


def test_of_processes_elsewhere_and_of_nonsense_nothing_is_known():
    for holder in ("elsewhere:1:2", "", ":", "::", f"{HERE}::", f"{HERE}:x:y", "a person", f"{HERE}:-1:5",
                   f"{HERE}:²:³"):
        assert not is_dead(holder)
