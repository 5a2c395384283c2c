"""The machines of an ssh_config, as OpenSSH itself understands it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.discovery.ssh_config import Alias, Hop, aliases, read_ssh_config
from fleet.discovery.ssh_lines import split_words

DATA = Path(__file__).parent.parent / "data" / "config"
SSH = shutil.which("ssh")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".ssh" / "config"
    path.write_text(text)
    return path


def resolve(home: Path, text: str) -> dict[str, Alias]:
    return {a.name: a for a in read_ssh_config(write(home, text), home=home, local_user="me").aliases}


def test_the_sample_gives_what_openssh_gives(home: Path) -> None:
    shutil.copytree(DATA / "config.d", home / ".ssh" / "config.d")
    read = read_ssh_config(write(home, (DATA / "ssh_config_main").read_text()), home=home, local_user="me")
    found = {alias.name: alias for alias in read.aliases}
    assert set(found) == {"box1", "box1.lan", "box2", "deep", "hop1", "hop2"}
    assert (found["box1"].host, found["box1"].user) == ("10.20.0.14", "ops")
    assert found["box1"].identity_files == (str(home / ".ssh" / "id_fleet"),)
    assert (found["box2"].host, found["box2"].user, found["box2"].host_key_policy) == (
        "fe80::1%eth0", "ops", "accept-new")
    hop1 = Hop("hop1", "192.0.2.10", 2222, "", ())
    assert (found["deep"].host, found["deep"].proxy_jump) == ("10.30.0.5", "hop1,hop2")
    assert found["deep"].hops == (hop1, Hop("hop2", "10.30.0.1", 22, "", ()))
    assert found["hop2"].hops == (hop1,)
    assert len(read.warnings) == 1 and "test -f /tmp/on-vpn" in read.warnings[0]
    seen = found["deep"].sighting(5.0)
    assert (seen.name, seen.addresses[0].host, seen.jump, seen.at) == ("deep", "10.30.0.5", "hop1,hop2", 5.0)


def test_match_exec_is_not_run_and_its_block_does_not_apply(home: Path) -> None:
    ran = home / "ran"
    text = f'Host a\n HostName 10.0.0.1\nMatch originalhost a exec "touch {ran}"\n User evil\nHost a\n User ops\n'
    found = resolve(home, text)
    assert not ran.exists() and found["a"].user == "ops" and "is not run" in found["a"].warnings[0]


def test_wildcards_are_no_aliases_and_git_hosts_no_machines(home: Path) -> None:
    assert set(resolve(home, """
        Host lab-* *.corp !bad ?x
        Host github.com gitlab.com
        Host work-git
            HostName ssh.github.com
        Host forge
            HostName forge.example
            User git
        Host box
            HostName 10.0.0.1
    """)) == {"box"}


def test_a_jump_to_itself_or_in_a_circle_ends(home: Path) -> None:
    found = resolve(home, "Host gate\n HostName 192.0.2.1\nHost a\n ProxyJump b\nHost b\n ProxyJump a\n"
                          "Host far\n HostName 10.0.0.9\nHost *\n ProxyJump gate\n")
    assert found["gate"].hops == () and found["gate"].proxy_jump == ""
    assert [hop.name for hop in found["far"].hops] == ["gate"]
    assert [hop.name for hop in found["a"].hops] == ["b"] and "circle" in found["a"].warnings[0]


def test_an_include_inside_of_a_host_block_belongs_to_it(home: Path) -> None:
    (home / ".ssh" / "more").write_text("User inside\nHost other\n HostName 10.0.0.2\n")
    found = resolve(home, "Host a\n Include more\n Port 2222\nHost b\n HostName 10.0.0.3\n")
    assert (found["a"].user, found["a"].port) == ("inside", 2222)
    assert found["b"].user == "" and found["b"].port == 22
    assert found["other"].host == "other"      # its block applies while `a` is asked for, and never is it `a`


def test_broken_lines_are_warnings_and_the_rest_holds(home: Path) -> None:
    path = write(home, 'Host a\n HostName "10.0.0.1\n User ops # the user\n Port many\n UseKeychain yes\n Hostname\n'
                       "Match user\n User x\nHost b\n ProxyJump a b/c,,\n Include [\n Include none/*.conf\n")
    read = read_ssh_config(path, home=home)
    found = {alias.name: alias for alias in read.aliases}
    assert found["a"].user == "ops" and found["a"].port == 22 and found["a"].host == "a"
    assert any("a quote is not closed" in w for w in read.warnings) and "no port" in found["a"].warnings[0]


def test_what_cannot_be_read_is_a_warning(home: Path) -> None:
    assert aliases(home / "none") == ()
    assert "cannot be read" in read_ssh_config(home, home=home).warnings[0]
    (home / "big").write_bytes(b"#" * (1024 * 1024 + 1))
    assert "longer than 1 MiB" in read_ssh_config(home / "big", home=home).warnings[0]
    (home / "binary").write_bytes(bytes(range(256)) * 9)
    assert read_ssh_config(home / "binary", home=home).aliases == ()


def test_files_that_include_themselves_end(home: Path) -> None:
    read = read_ssh_config(write(home, "Host a\n HostName 10.0.0.1\nInclude config config\n"), home=home)
    assert [alias.name for alias in read.aliases] == ["a"] and read.warnings


def test_an_alias_behind_a_proxy_command_shares_no_address_with_others(home: Path) -> None:
    found = resolve(home, "Host a\n HostName 10.0.0.1\n ProxyCommand nc -x gate %h %p\n ProxyJump b\n")
    assert found["a"].hops == () and found["a"].sighting(0.0).through == "nc -x gate %h %p"


@pytest.mark.parametrize(("text", "words"), [
    ("", ()), ("a b", ("a", "b")), ('"a b" c', ("a b", "c")), ("'a b'", ("a b",)), ("a # b", ("a",)), ("a#b", ("a#b",)),
    (r'"a \"b\""', ('a "b"',)), (r"a\ b", ("a b",)), (r"C:\key", (r"C:\key",)), ('"a', None), ('a"b c"d', ("ab cd",))])
def test_words_are_split_as_openssh_splits_them(text: str, words: tuple[str, ...] | None) -> None:
    assert split_words(text) == words


# ---- against ssh itself


def ask_ssh(path: Path, name: str) -> dict[str, list[str]] | None:
    """What `ssh -G` makes of a name; None where it refuses the file."""
    done = subprocess.run([SSH or "ssh", "-G", "-F", str(path), "--", name], capture_output=True, text=True, timeout=10,
                          check=False)
    if done.returncode:
        return None
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)
    return said


NAMES = ["a", "b", "ab", "box", "hop1", "hop2"]
PATTERNS = st.lists(st.sampled_from([*NAMES, "*", "a*", "?", "!a", "!b*", "h*1", "*.lan", "10.*"]),
                    min_size=1, max_size=3)
SETTINGS = st.sampled_from(["HostName 10.0.0.1", "HostName %h.lan", "Hostname=b", "User ops", 'User "big ops"',
                            "User=x",
                            "Port 2222", "Port = 23", "ProxyJump hop1", "ProxyJump me@hop1:99,hop2", "ProxyJump none",
                            "ProxyCommand none", "ProxyCommand nc %h %p", "IdentityFile /k/one", "IdentityFile /k/%h",
                            "IdentityFile /k/%r@%n:%p", "StrictHostKeyChecking accept-new", "User ops # me"])
BLOCKS = st.one_of(
    PATTERNS.map(lambda patterns: "Host " + " ".join(patterns)),
    st.sampled_from(["Match all", "Match final", "Match host 10.* user ops", "Match originalhost a,b",
                     "Match host *.lan",
                     "Match !host a", "Match user ops", "Match localuser nobody", "Match host=b", "Match canonical",
                     "Match final host 10.0.0.1"]))


@pytest.mark.skipif(SSH is None, reason="there is no ssh here to compare with")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(BLOCKS, st.lists(SETTINGS, max_size=4)), max_size=5), st.sampled_from(NAMES), st.booleans())
def test_any_file_means_what_ssh_says_it_means(home: Path, blocks: list[tuple[str, list[str]]], name: str,
                                               included: bool) -> None:
    text = "".join(f"{head}\n" + "".join(f"  {line}\n" for line in lines) for head, lines in blocks)
    path = home / "written"
    path.write_text(text)
    if included:
        path = home / "outer"
        path.write_text(f"Host b\nInclude {home / 'written'}\nUser after\nHost *\n  Include {home / 'written'}\n")
    path.write_text(path.read_text() + f"Host {name}\n")
    said = ask_ssh(path, name)
    found = {alias.name: alias for alias in read_ssh_config(path, home=home).aliases}
    if said is None:
        return
    alias = found[name]
    assert alias.host == said["hostname"][0]
    assert str(alias.port) == said["port"][0]
    assert alias.user in ("", said["user"][0])
    assert (alias.user == "") <= (said["user"][0] not in ("ops", "x", "big ops", "after"))
    keys = [key for key in said.get("identityfile", []) if key.startswith("/k/")]
    assert len(alias.identity_files) == len(keys)
    assert alias.host_key_policy == ("accept-new" if said["stricthostkeychecking"] == ["accept-new"] else "")
    assert alias.proxy_command == said.get("proxycommand", [""])[0]
    if "circle" not in "".join(alias.warnings):
        assert alias.proxy_jump == said.get("proxyjump", [""])[0]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="HostMatchIncludePrxyJum naeb,*?!%=\"'\\#\n\t10.@:[]", max_size=200))
def test_any_text_gives_aliases_and_warnings(home: Path, text: str) -> None:
    read = read_ssh_config(write(home, "Host a\nProxyJump " + text), home=home)
    assert all(warning.isprintable() for warning in read.warnings)
