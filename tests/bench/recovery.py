"""How fast a restarted learner gets its state from a peer, against the loopback of the same run.

Live: two learners of which one is killed again and again. A transfer lasts from the donor's copy of
its state to the newcomer's being loaded with it: read, digested, cut into frames, sent through the
proxy, put together, checked, digested again and put into the replica, while the donor trains on.
Beside it, between two processes that do nothing else: a plain TCP stream, and a plain gRPC stream
of messages as long as the frames.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from targets.diloco.wire import CHUNK_BYTES
from tests.bench import Figure

KILLS = 5
MEGABYTES = 512
"""How much the plain streams carry."""
SPEC = f"""
title = "bench: recovery"
duration_s = {9 * KILLS}
quiet_tail_s = 15
[target]
name = "diloco"
params = {{ learners = 2, fragments = 8, sync_every = 8, model = "base", batch = 1, sequence = 16, step_time_s = 0.5 }}
[[fault]]
kind = "kill"
where = ["learner-1"]
schedule = {{ process = "fixed", mean_gap_s = 8.5 }}
"""  # noqa: E501
TCP = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as out:
    chunk = bytes(int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        out.sendall(chunk)
"""
GRPC = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
def stream(request, context):
    chunk = bytes(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        yield chunk
server = grpc.server(ThreadPoolExecutor(2))
handler = grpc.unary_stream_rpc_method_handler(stream)
handlers = grpc.method_handlers_generic_handler("bench", {"Stream": handler})
server.add_generic_rpc_handlers((handlers,))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


def measure() -> list[Figure]:
    """The three rates and their ratios; the streams before and after, the better of each."""
    before = _tcp(), _grpc()
    transfers = _transfers()
    after = _tcp(), _grpc()
    tcp, plain = (max(pair) for pair in zip(before, after, strict=True))
    rate = statistics.median(nbytes / seconds for nbytes, seconds in transfers) / 1e6
    size = transfers[0][0] / 1e6
    return [
        Figure("plain TCP stream over loopback", tcp, "MB/s", "", True),
        Figure("plain gRPC stream, 1 MiB messages", plain, "MB/s", "", True),
        Figure(f"state of {size:.0f} MB from a peer (n={len(transfers)})", rate, "MB/s", "", True),
        Figure("recovery to plain gRPC", rate / plain, "x", "", True),
        Figure("recovery to plain TCP", rate / tcp, "x", "", True),
    ]


def _transfers() -> list[tuple[int, float]]:
    """(bytes, seconds) of each state that the killed learner got from its peer."""
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder) / "bench.toml", Path(folder) / "out"
        spec.write_text(SPEC)
        command = [sys.executable, "-m", "harness", "run", str(spec), "--seed", "1"]
        command += ["--quiet", "--json", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        if done.returncode == 4 or not done.stdout:
            raise RuntimeError(f"the cluster broke:\n{done.stderr[-2000:]}")
        events = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    found = list(_measured(events))
    if not found:
        raise RuntimeError("no learner got its state from a peer; see the spec in this file")
    return found


def _measured(events: list[dict[str, Any]]) -> Iterator[tuple[int, float]]:
    copied: dict[tuple[str, int], int] = {}
    for event in events:
        if event["event"] == "state_copied":
            copied[event["peer"], event["peer_incarnation"]] = event["t_ns"]
        elif event["event"] == "joined" and event.get("inner") == "learner-0":
            began_ns = copied[event["unit"], event["incarnation"]]
            yield event["nbytes"], (event["t_ns"] - began_ns) / 1e9


def _tcp() -> float:
    """MB/s of a plain stream of chunks between two processes."""
    chunks = MEGABYTES * 1_000_000 // CHUNK_BYTES
    room = memoryview(bytearray(CHUNK_BYTES))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-c", TCP, str(port), str(CHUNK_BYTES), str(chunks)]
        with subprocess.Popen(command) as sender, server.accept()[0] as connection:
            connection.recv_into(room)  # it sends from now on
            began, got = time.perf_counter(), 0
            while count := connection.recv_into(room):
                got += count
            seconds = time.perf_counter() - began
            sender.wait(30)
    return got / seconds / 1e6


def _grpc() -> float:
    """MB/s of a plain gRPC stream of chunks between two processes."""
    chunks = MEGABYTES * 1_000_000 // CHUNK_BYTES
    command = [sys.executable, "-c", GRPC, str(CHUNK_BYTES), str(chunks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream: Any = channel.unary_stream("/bench/Stream")
            call = stream(b"")
            next(call)
            began, got = time.perf_counter(), 0
            for chunk in call:
                got += len(chunk)
            seconds = time.perf_counter() - began
        server.communicate(timeout=30)
    return got / seconds / 1e6
