#!/usr/bin/env python3
"""A stand-in for `vllm` and `ray`: no model, no GPU, but their command lines, their ports and who waits for whom.

It takes its name from the file that it is called by. Options are checked against those of the real programs (their
names in arguments.json beside it). What goes wrong is asked for in its environment:

    STAND_IN_DIE=RANK       that rank ends as soon as it has found the head
    STAND_IN_NEVER=1        the head never listens for clients
    STAND_IN_DEAD=FILE      /health answers 503 as long as FILE is there
    STAND_IN_NAME=NAME      it serves under another name than it was given
    STAND_IN_NO_TOKEN=1     completions fail
"""

import http.server
import json
import os
import pathlib
import socket
import sys
import threading
import time

HERE = pathlib.Path(sys.argv[0]).resolve()
PROGRAM = pathlib.Path(sys.argv[0]).name
KNOWN = json.loads((HERE.parent / "arguments.json").read_text())[PROGRAM]["options"]


def main() -> None:
    """As `vllm serve MODEL ...` or `ray start ...`."""
    command, *words = sys.argv[1:]
    given = parse(words)
    (pathlib.Path.cwd() / "seen.json").write_text(json.dumps({"argv": sys.argv, "env": dict(os.environ)}))
    if PROGRAM == "ray":
        expect(command == "start" and "--block" in given, "ray start --block")
        ray(given)
    expect(command == "serve", "vllm serve")
    if "--headless" in given:
        stage(given)
    head(given)


def parse(words: list) -> dict:
    """Options and values; ends with 2 at what the real program does not have."""
    given, index = {}, 0
    while index < len(words):
        word = words[index]
        if not word.startswith("-"):
            given.setdefault("", []).append(word)
            index += 1
            continue
        expect(word in KNOWN, f"unrecognized arguments: {word}")
        takes = KNOWN[word] == "value"
        given[word] = words[index + 1] if takes else True
        index += 2 if takes else 1
    return given


def expect(holds: bool, said: str) -> None:
    """Or end as argparse does."""
    if not holds:
        print(f"{PROGRAM}: error: {said}", flush=True)
        sys.exit(2)


def ray(given: dict) -> None:
    """The first node counts those that join; a connection that asks gets the number."""
    if "--head" in given:
        server = socket.create_server((given["--node-ip-address"], int(given["--port"])))
        threading.Thread(target=count, args=(server,), daemon=True).start()
    else:
        host, _, port = given["--address"].partition(":")
        held = connect(host, int(port))
        held.sendall(b"join")
    print("Ray runtime started.", flush=True)
    time.sleep(1e6)


def count(server: socket.socket) -> None:
    """Who is there: ourselves and all that joined."""
    joined = []
    while True:
        client, _ = server.accept()
        if client.recv(4) == b"join":
            joined.append(client)
        else:
            client.sendall(str(len(joined) + 1).encode())
            client.close()


def connect(host: str, port: int) -> socket.socket:
    """Until somebody is there, as torch's store does."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=1.0)
        except OSError:
            print("waiting for the head", flush=True)
            time.sleep(0.05)


def stage(given: dict) -> None:
    """Find the head, and compute until it is gone."""
    held = connect(given["--master-addr"], int(given["--master-port"]))
    held.settimeout(None)
    held.sendall(given["--node-rank"].encode())
    if os.environ.get("STAND_IN_DIE") == given["--node-rank"]:
        print("torch.OutOfMemoryError: CUDA out of memory.", flush=True)
        sys.exit(1)
    time.sleep(1e6)


def head(given: dict) -> None:
    """Wait for all the others, then listen for clients."""
    stages = int(given["--pipeline-parallel-size"])
    if given.get("--distributed-executor-backend") == "ray":
        host, _, port = os.environ["RAY_ADDRESS"].partition(":")
        while True:
            with connect(host, int(port)) as asked:
                asked.sendall(b"who?")
                if int(asked.recv(16)) >= stages:
                    break
            time.sleep(0.05)
    elif stages > 1:
        server = socket.create_server((given["--master-addr"], int(given["--master-port"])))
        held = [server.accept()[0] for _ in range(int(given["--nnodes"]) - 1)]
        print(f"{len(held)} more ranks", flush=True)
    while os.environ.get("STAND_IN_NEVER"):
        time.sleep(1)
    serve(given)


def serve(given: dict) -> None:
    """Health, models, metrics and completions of one token."""
    name = os.environ.get("STAND_IN_NAME") or given["--served-model-name"]
    key = os.environ.get("VLLM_API_KEY", "")

    class Answers(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            dead = os.path.exists(os.environ.get("STAND_IN_DEAD") or "/nowhere")
            if self.path == "/health":
                self.tell(503 if dead else 200, b"")
            elif self.path == "/metrics":
                self.tell(200, b'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
                               b'vllm:generation_tokens_total{engine="0",model_name="m"} 7.0\n')
            elif self.refused():
                return
            elif self.path == "/v1/models":
                self.tell(200, json.dumps({"object": "list", "data": [{"id": name}]}).encode())
            else:
                self.tell(404, b"{}")

        def do_POST(self) -> None:
            wanted = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.refused():
                return
            if os.environ.get("STAND_IN_NO_TOKEN") or wanted["model"] != name:
                self.tell(500, b'{"error": {"message": "the engine said no"}}')
                return
            self.tell(200, b'{"choices": [{"text": "."}], "usage": {"completion_tokens": 1}}')

        def refused(self) -> bool:
            if key and self.headers.get("authorization") != f"Bearer {key}":
                self.tell(401, b'{"error": "Unauthorized"}')
                return True
            return False

        def tell(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    http.server.ThreadingHTTPServer((given["--host"], int(given["--port"])), Answers).serve_forever()


if __name__ == "__main__":
    main()
