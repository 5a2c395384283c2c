"""A saved slot is read back by the head that wrote it alone."""

import pytest

from fleet.nodes.notes import SlotsFolder
from fleet.operations.slot_keys import KEY_FACT, key_of, slots_key

FOLDER = SlotsFolder("/state/slots", 1 << 30, "1700000000")
ARGV = ("llama-server", "-m", "/m/a.gguf", "-c", "4096", "--chat-template", "chatml")


@pytest.mark.parametrize("other", [
    slots_key((*ARGV[:4], "8192", *ARGV[5:]), "b10068", 100, FOLDER),
    slots_key((*ARGV[:-1], "llama3"), "b10068", 100, FOLDER),
    slots_key(ARGV, "b11434", 100, FOLDER),
    slots_key(ARGV, "b10068", 101, FOLDER),
    slots_key(ARGV, "b10068", 100, SlotsFolder("/state/slots", 5, "1700000001")),
], ids=["context", "template", "build", "size", "changed"])
def test_another_head_has_another_key(other: str):
    assert other != slots_key(ARGV, "b10068", 100, FOLDER)


def test_the_same_head_has_the_same_key_wherever_its_disk_is_as_full_as_it_is():
    assert slots_key(ARGV, "b10068", 100, FOLDER) == slots_key(
        list(ARGV), "b10068", 100, SlotsFolder("/state/slots", 5, "1700000000", ("aa-0",)))


def test_a_model_whose_age_nobody_tells_is_not_kept():
    assert slots_key(ARGV, "b10068", 100, SlotsFolder("/state/slots", 5, "")) == ""


@pytest.mark.parametrize("said", [None, 5, "", "../../etc/passwd", "A" * 16, "0" * 15])
def test_what_is_no_key_beside_a_pid_file_is_passed_over(said: object):
    assert key_of({KEY_FACT: said}) == ""
