"""A node of the fleet that belongs to somebody else now, and real secrets on real hosts."""
# ruff: noqa: ASYNC240 -- short looks at small files, in tests

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import bring_up, fleet_of, running, tear_down, until

from app.as_json import to_text
from fleet.config.schema import DiscoveryConfig, FleetConfig, HeadConfig, NodeConfig, SshConfig, WorkerConfig
from fleet.errors import HostKeyChanged
from fleet.model import Address, DeploymentState, NodeState
from fleet.nodes.questions import nobody
from fleet.nodes.ssh import SshTransport

NASTY = r"\033]0;own\007\033[2J[red]x[/red]\342\200\256\342\201\246\302\2332J\377"   # as printf takes it
BAD = frozenset(chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))) | set("\u202e\u2066")

HEAD = r'''
import http.server, json
N = "\x1b]0;own\x07[red]\u202e\u2066\x9b2J"
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def answer(self, text, kind="application/json"):
        data = text.encode("utf-8", "surrogatepass")
        self.send_response(200); self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
    def do_GET(self):
        big = 10 ** 4000
        if self.path == "/health": self.answer('{"status": "ok"}')
        elif self.path == "/props": self.answer(json.dumps({"chat_template": N, "model_path": N, "total_slots": big,
            "default_generation_settings": {"n_ctx": big}, "build_info": N}))
        elif self.path == "/slots": self.answer(json.dumps([{"id": big, "is_processing": N}] * 5000))
        else: self.answer("llamacpp:tokens_predicted_total 1e308\nllamacpp:tokens_predicted_seconds_total nan\n"
                          + N * 9999)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        said = [{"choices": [{"delta": {"content": "hello " + N, "reasoning_content": N}}]},
                {"choices": [{"delta": {"content": "\ud83d"}, "finish_reason": N}],
                 "timings": {"predicted_n": 10 ** 4000, "predicted_ms": 1e308}}]
        self.answer("".join("data: " + json.dumps(s) + "\n\n" for s in said) + "data: " + "[" * 100000 + "\n\n",
                    "text/event-stream")
http.server.ThreadingHTTPServer(("127.0.0.1", 18080), H).serve_forever()
'''


def node_config(lab, name: str, **changes: object) -> NodeConfig:
    node = lab.nodes[name]
    return NodeConfig(name, addresses=(f"{node['addr']}:{node['port']}",), user=node["user"],
                      identity_files=(node["key"],), **changes)


def plain_fleet(lab, *nodes: NodeConfig) -> FleetConfig:
    return FleetConfig(fleet="lab", nodes={node.name: node for node in nodes}, refresh=1.0,
                       discovery=DiscoveryConfig(mdns=False, ssh_config=False),
                       ssh=SshConfig(known_hosts=lab.known_hosts, agent=False))


@pytest.fixture
async def hostile(lab) -> AsyncIterator[str]:
    """A node whose every tool, file and service says nasty things; it is itself again afterwards."""
    name = lab.one("nvidia")
    assert lab.exec(name, "cp /usr/local/bin/nvidia-smi /etc/os-release /root").returncode == 0
    for tool, text in (("nvidia-smi", f"index, name\\n0, {NASTY}, 999999999999, 1, 1, 1, 1, 1\\n"),
                       ("id", "-oProxyCommand=touch /tmp/owned\\n"), ("uname", f"Linux {NASTY} {NASTY} x86_64\\n")):
        ours = {"id": '[ "$1" != -u ] || exec /usr/bin/id -u', "uname": '[ "$1" != -n ] || exec /usr/bin/uname -n'}
        lab.exec(name, f"printf '%s\\n' '#!/bin/sh' '{ours.get(tool, '')}' >/usr/local/bin/{tool}; "
                       f"""printf '%s' "printf -- '{text}'" >>/usr/local/bin/{tool}; chmod 755 /usr/local/bin/{tool}""")
    lab.exec(name, f"printf 'PRETTY_NAME=\"{NASTY}\"\\n' >/etc/os-release")
    names = f"""'{NASTY.replace("/", "")}' '-m' 'a,b' '$(touch /tmp/owned)' "a'b" 'a\\nb'"""
    lab.exec(name, f"mkdir -p ~/models; cd ~/models; for f in {names}; do"
                   " printf GGUF >\"$(printf -- \"$f\").gguf\"; done 2>/dev/null", user="fleet")
    lab.exec(name, f"cat >/tmp/head.py <<'END'\n{HEAD}\nEND")
    lab.exec(name, "cd /; setsid python3 /tmp/head.py llama-server >/tmp/head.log 2>&1 & echo $!", user="fleet")
    service = r"""
d=~/.local/state/quarterdeck/services/coordinator-18080; mkdir -p "$d"; chmod 700 ~/.local/state/quarterdeck "$d"
pid=$(pgrep -f head.py | head -n 1)
start=$(cat /proc/sys/kernel/random/boot_id):$(sed 's/.*) //' /proc/$pid/stat | cut -d' ' -f20)
{
    printf '{"pid":%s,"start_time":"%s","started_epoch":1,' $pid $start
    printf '"argv":["/x/llama-server","%s"],"port":18080,"bind":"127.0.0.1",' 'N\u001b]0;x\u0007\u202e'
    printf '"build":"%s","kind":"coordinator","fleet":"lab","env":{},"log_limit":65536,"cwd":""}\n' '\u001b[2J'
} >"$d/pid.json"
{
    printf '{"model":"\\u001b[2J[red]\\u202e","model_path":"-m","context":%s,' 99999
    printf '"workers":[{"node":"NOWHERE","service":"worker-1","endpoint":"x"}],'
    printf '"real":[{"node":"\\u001b[31m","device":"\\u202e","model_bytes":7}]}\n'
} >"$d/facts.json"
printf 'NASTY\n' | sed 's/^/load /' >"$d/log"
""".replace("NASTY", NASTY)
    done = lab.exec(name, service, user="fleet")
    assert done.returncode == 0, done.stderr
    yield name
    lab.exec(name, r"pkill -f '[h]ead\.py'")      # by itself: the shell that says the plain name would end itself
    done = lab.exec(name, "cd /home/fleet && rm -rf models .local/state/quarterdeck /tmp/head.py /usr/local/bin/id "
                          "/usr/local/bin/uname && mv /root/nvidia-smi /usr/local/bin && mv /root/os-release /etc")
    assert done.returncode == 0, done.stderr


async def cli(tmp_path: Path, *words: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """The command as a person runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main())", *words, cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await process.communicate(stdin)
    return process.returncode or 0, out.decode("utf-8", "surrogateescape"), err.decode("utf-8", "surrogateescape")


def write_config(lab, tmp_path: Path, *names: str) -> None:
    nodes = "".join(
        f"  {name}: {{address: '{lab.address(name)}:{lab.nodes[name]['port']}', user: {lab.nodes[name]['user']}, "
        f"identity_file: {lab.nodes[name]['key']}}}\n" for name in names)
    (tmp_path / "fleet.yaml").write_text(
        f"fleet: lab\nnodes:\n{nodes}ssh: {{known_hosts: {lab.known_hosts}, agent: false}}\n"
        "discovery: {mdns: false, ssh_config: false}\nmodel_dirs: [~/models]\n")


@pytest.mark.timeout(240)
async def test_no_verb_lets_a_hostile_node_move_the_terminal_or_end_the_program(lab, hostile, tmp_path):
    write_config(lab, tmp_path, hostile, lab.plain[0])
    seen: dict[tuple[str, ...], str] = {}
    for words in (("nodes",), ("nodes", "--json"), ("status",), ("status", "--json"), ("doctor",), ("doctor", "--json"),
                  ("logs", hostile, "coordinator-18080"), ("chat", "Hello"), ("chat", "--json", "Hello"),
                  ("up", "--dry-run"), ("up", "--dry-run", "--", "-m"),
                  ("restart", "--dry-run", hostile, "coordinator-18080"),
                  ("init", "--print"), ("--no-ui", "--once"), ("--no-ui", "--once", "--json")):
        code, out, err = await cli(tmp_path, *words)
        assert code not in (1, 70) or "a fault of its own" not in err, (words, err)
        assert "Traceback" not in err + out and not set(out + err) & BAD, (words, set(out + err) & BAD, out, err)
        if "--json" in words:
            json.loads(out)
        seen[words] = out
    assert "hello \\x1b]0;own" in seen["chat", "Hello"] and "coordinator-18080" in seen["status",]
    nodes = {node["name"]: node for node in json.loads(seen["nodes", "--json"])["nodes"]}
    reading = nodes[hostile]["reading"]
    assert "\x1b" in reading["os_version"] and "\x1b" in reading["devices"][0]["label"]
    assert reading["user"].startswith("-o") and len(reading["models"]) >= 4
    assert "\\x1b]0;own" in seen["logs", hostile, "coordinator-18080"]
    assert lab.exec(hostile, "[ ! -e /tmp/owned ]").returncode == 0 and not Path("/tmp/owned").exists()
    assert not list((tmp_path / "state").rglob("crash-*"))


async def test_a_hostile_node_delays_and_breaks_no_other(lab, hostile):
    good = lab.plain[0]
    async with running(plain_fleet(lab, node_config(lab, hostile), node_config(lab, good))) as engine:
        snapshot = await until(engine, lambda s: s.nodes[hostile].services and s.nodes[good].state is NodeState.UP)
        assert snapshot.nodes[hostile].state is NodeState.UP
        problems = (snapshot.nodes[good].problem, snapshot.nodes[hostile].problem)
        assert not [problem for problem in problems if problem and problem.code == "internal"]


async def test_a_node_in_another_nodes_place_is_refused_by_its_key(lab):
    """The cable of one node leads to another machine, whose key known_hosts has too: as its own."""
    atlas, other = lab.plain[:2]
    here, there = lab.target(atlas).addresses[0], lab.target(other).addresses[0]
    heard = replace(there, source="mdns")
    transport = SshTransport(lab.target(atlas, addresses=(heard, Address(here.host, here.port, source="fleet.yaml"))),
                             ask=nobody, accept_new=True)
    try:
        assert (await transport.connect()).address.host == here.host     # the stranger is passed over
    finally:
        await transport.close()
    lab.cut(atlas)
    alone = SshTransport(lab.target(atlas, addresses=(heard, Address(here.host, here.port, source="fleet.yaml")),
                                    connect_timeout=2.0), ask=nobody, accept_new=True)
    try:
        with pytest.raises(Exception, match=r"key|answer") as caught:
            await alone.connect()
        assert isinstance(caught.value, HostKeyChanged) or "does not answer" in str(caught.value)
    finally:
        await alone.close()


@pytest.mark.engine
@pytest.mark.timeout(300)
async def test_secrets_of_a_real_run_are_in_no_process_list_no_file_of_others_and_no_answer_of_ours(lab, tmp_path):
    head, worker = lab.plain[:2]
    lab.exec(head, "umask 077; echo s3cret-api-key >~/key", user="fleet")
    config = fleet_of(lab, head, worker)
    config = replace(config, nodes={
        head: replace(config.nodes[head], head=HeadConfig(port=18081, threads=1, api_key_file="/home/fleet/key")),
        worker: replace(config.nodes[worker], workers=(
            WorkerConfig(port=51052, threads=1, env={"HF_TOKEN": "s3cret-token"}),))})
    async with running(config) as engine:
        try:
            await bring_up(engine)
            await until(engine, lambda s: s.deployment.state is DeploymentState.SERVING)
            client = engine.head_client()
            assert client is not None
            async with client:
                assert (await client.complete("Hello", n_predict=1)).tokens == 1
            told = to_text(engine.latest) + repr(engine.latest)
            for name in (head, worker):
                told += lab.exec(name, "ps -eo args").stdout
                told += lab.exec(name, "cat ~fleet/.local/state/quarterdeck/services/*/log").stdout
                open_ones = lab.exec(name, "find ~fleet/.local/state/quarterdeck -perm /077 ! -type l").stdout
                assert open_ones == "", open_ones
            told += Path("/proc/self/cmdline").read_text()
            assert "s3cret" not in told
            without = await engine.transport(head).run(
                "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:18081/slots\")' 2>&1", timeout=20)
            assert "401" in without.text
        finally:
            await tear_down(engine)
    lab.exec(head, "rm ~/key", user="fleet")
