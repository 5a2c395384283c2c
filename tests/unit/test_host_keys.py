"""Host keys: what known_hosts says, judged as OpenSSH would, and added to without harm."""

from __future__ import annotations

import base64
import os
import shutil
import stat
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.nodes import host_keys
from fleet.nodes.host_keys import HostKey, Verdict, judge, name_of, read

ED = HostKey("ssh-ed25519", b"\0\0\0\x0bssh-ed25519-one")
OTHER = HostKey("ssh-ed25519", b"\0\0\0\x0bssh-ed25519-two")
RSA = HostKey("ssh-rsa", b"\0\0\0\x07ssh-rsa-key")


def line(names: str, key: HostKey, marker: str = "") -> str:
    return f"{marker + ' ' if marker else ''}{names} {key.algorithm} {base64.b64encode(key.blob).decode()}\n"


@pytest.fixture
def known(tmp_path):
    def write(*lines: str):
        (tmp_path / "known_hosts").write_text("".join(lines))
        return read([str(tmp_path / "known_hosts")])
    return write


def test_a_key_that_stands_there_is_known(known):
    found = judge(known("# comment\n", "\n", line("bolt,10.0.0.5", ED)), ED, ["10.0.0.5"])
    assert found.verdict is Verdict.KNOWN and found.line.line == 3


def test_another_key_for_the_name_is_a_change_and_its_line_is_named(known):
    found = judge(known(line("atlas", ED), line("bolt", OTHER)), ED, ["bolt"])
    assert found.verdict is Verdict.CHANGED and found.line.line == 2


def test_a_name_that_is_not_there_is_unknown(known):
    assert judge(known(line("atlas", ED)), ED, ["bolt"]).verdict is Verdict.UNKNOWN


def test_one_of_several_keys_of_a_name_is_enough(known):
    assert judge(known(line("bolt", RSA), line("bolt", ED)), ED, ["bolt"]).verdict is Verdict.KNOWN


def test_another_name_of_the_node_vouches_but_does_not_contradict(known):
    lines = known(line("bolt.local", ED), line("stale", OTHER))
    assert judge(lines, ED, ["10.0.0.5"], ["bolt.local"]).verdict is Verdict.KNOWN
    assert judge(lines, ED, ["10.0.0.5"], ["stale"]).verdict is Verdict.UNKNOWN


def test_a_revoked_key_is_revoked_even_where_it_is_also_known(known):
    assert judge(known(line("bolt", ED), line("*", ED, "@revoked")), ED, ["bolt"]).verdict is Verdict.REVOKED


def test_an_authority_is_no_host_key(known):
    lines = known(line("*.lan", ED, "@cert-authority"))
    assert judge(lines, OTHER, ["bolt.lan"]).verdict is Verdict.UNKNOWN
    assert host_keys.authorities(lines, ["bolt.lan"], "cert-authority") == (ED,)


def test_ports_patterns_and_negations_are_read_as_openssh_reads_them(known):
    lines = known(line("[bolt]:2222", ED), line("*.lan,!bad.lan", ED), line("10.0.0.?", RSA))
    assert judge(lines, ED, [name_of("Bolt", 2222)]).verdict is Verdict.KNOWN
    assert judge(lines, ED, [name_of("bolt", 22)]).verdict is Verdict.UNKNOWN
    assert judge(lines, ED, ["good.lan"]).verdict is Verdict.KNOWN
    assert judge(lines, ED, ["bad.lan"]).verdict is Verdict.UNKNOWN
    assert judge(lines, RSA, ["10.0.0.7"]).verdict is Verdict.KNOWN


def test_known_kinds_come_first_so_that_a_second_key_of_the_node_does_not_look_new(known):
    assert host_keys.algorithms(known(line("bolt", ED), line("atlas", RSA)), ["bolt"]) == ("ssh-ed25519",)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_hashed_names_and_fingerprints_are_those_of_ssh_keygen(tmp_path):
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    public = (tmp_path / "key.pub").read_text().split()
    file = tmp_path / "known_hosts"
    file.write_text(f"bolt {' '.join(public[:2])}\n[bolt]:2222 {' '.join(public[:2])}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    key = HostKey(public[0], base64.b64decode(public[1]))
    lines = read([str(file)])
    assert all(found.patterns.startswith("|1|") for found in lines)
    assert judge(lines, key, ["bolt"]).line.line == 1
    assert judge(lines, key, ["[bolt]:2222"]).line.line == 2
    assert judge(lines, key, ["atlas"]).verdict is Verdict.UNKNOWN
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], check=True, capture_output=True, text=True)
    assert key.fingerprint == shown.stdout.split()[1]


def test_an_accepted_key_is_added_and_nothing_else_is_touched(tmp_path):
    file = tmp_path / "ssh" / "known_hosts"
    host_keys.append(str(file), "bolt", ED)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_bytes(b"# mine, without a line break at its end")
    file.chmod(0o644)
    host_keys.append(str(file), "[bolt]:2222", ED)
    assert file.read_text() == "# mine, without a line break at its end\n" + line("[bolt]:2222", ED)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert judge(read([str(file)]), ED, ["[bolt]:2222"]).verdict is Verdict.KNOWN


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_says_so(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="denied"):
        host_keys.append(str(tmp_path / "known_hosts"), "bolt", ED)


@given(st.binary(max_size=2000))
def test_whatever_stands_in_the_file_is_read_without_an_error(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("any") / "known_hosts"
    file.write_bytes(data + b"\nbolt ssh-ed25519 !!!\n|1|x bolt AAAA\n|1|a|b ssh-ed25519 AAAA\n\n")
    judge(read([str(file)]), ED, ["bolt"])


def test_the_errors_name_the_line_and_the_command(known, tmp_path):
    found = judge(known(line("bolt", OTHER)), ED, ["bolt"])
    error = host_keys.changed("bolt", "10.0.0.5:22", ED, found.line, "bolt")
    assert f"{tmp_path}/known_hosts line 1" in error.what and ED.fingerprint in error.what
    assert f"ssh-keygen -f {tmp_path}/known_hosts -R bolt" in error.remedy
    assert "--accept-new" in host_keys.unknown("bolt", "10.0.0.5:22", ED, "ssh bolt").remedy
