#!/usr/bin/env python3
"""Latency for one client, and the cost of looking for work (`--spin`) for a shard.

    python3 benches/one_client.py target/release/deuteron [ROUNDS] [FLAGS-OF-A FLAGS-OF-B ...]

Servers with one shard on core 0 take turns, `deuteron bench` has core 1: a closed loop over HTTP and gRPC, then open loops
(Poisson) of 10 to 10,000 requests/s on one connection, then nothing at all. CPU is that of the server's threads, from
`/proc/PID/task/*/schedstat`. At last the client has the server's core. Medians (least to most)."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

MODEL = """name: "identity_fp32"
backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
SECONDS = 2
RATES = (10, 100, 1_000, 10_000)


def cpu(process):
    """Seconds that all threads of a process have run."""
    total = 0
    for thread in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


class Server:
    def __init__(self, binary, repository, port, flags):
        self.flags, self.port = flags, port
        line = ["taskset", "-c", "0-1", binary, "serve", repository, "--shards=1", "--log-info=false"]
        ports = [f"--{name}-port={port + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        self.process = subprocess.Popen(line + ports + flags.split())
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").read()
                return
            except OSError:
                time.sleep(0.02)
        sys.exit("the server is not ready")

    def load(self, binary, protocol, load, core):
        """The median latency in microseconds, requests/s, and the CPU of the server in percent of a core."""
        before, begun = cpu(self.process.pid), time.monotonic()
        line = ["taskset", "-c", str(core), binary, "bench", "-m", "identity_fp32", "-i", protocol, "--connections=1"]
        line += [f"-u=127.0.0.1:{self.port + (protocol == 'grpc')}", load, f"-p={SECONDS * 1000}", "--max-trials=1"]
        done = subprocess.run(line + ["--warm-up=300", "--format=json"], capture_output=True, text=True)
        share = 100 * (cpu(self.process.pid) - before) / (time.monotonic() - begun)
        result = json.loads(done.stdout.splitlines()[0])
        return result["latency_p50_us"], result["throughput"], share

    def rest(self):
        before = cpu(self.process.pid)
        time.sleep(SECONDS)
        return 0, 0, 100 * (cpu(self.process.pid) - before) / SECONDS


def loads(binary):
    """The measured loads: a name, and the function that measures it on a server."""
    closed, rate = "--concurrency-range=1", "--request-rate-range={}"
    yield "HTTP, closed loop", lambda server: server.load(binary, "http", closed, 1)
    yield "gRPC, closed loop", lambda server: server.load(binary, "grpc", closed, 1)
    for count in RATES:
        name = f"HTTP, {count:,} a second"
        yield name, lambda server, count=count: server.load(binary, "http", rate.format(count), 1)
    yield "nothing", lambda server: server.rest()
    yield "HTTP, closed loop, on the same core", lambda server: server.load(binary, "http", closed, 0)


def main():
    binary, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    kinds = sys.argv[3:] or ["--spin=0", "--spin=auto"]
    with tempfile.TemporaryDirectory() as repository:
        os.makedirs(f"{repository}/identity_fp32/1")
        with open(f"{repository}/identity_fp32/config.pbtxt", "w") as file:
            file.write(MODEL)
        servers = [Server(binary, repository, 28000 + 10 * index, flags) for index, flags in enumerate(kinds)]
        print(f"{'':<36} {'':<24} {'p50, µs':>24} {'requests/s':>12} {'CPU of the server, % of a core':>34}")
        for name, measure in loads(binary):
            results = {server.flags: [] for server in servers}
            for turn in range(rounds):
                for server in servers if turn % 2 == 0 else reversed(servers):
                    results[server.flags].append(measure(server))
            for flags, measured in results.items():
                waits, rates, shares = ([one[index] for one in measured] for index in range(3))
                of = lambda values: f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
                print(f"{name:<36} {flags:<24} {of(waits):>24} {statistics.median(rates):>12,.0f} {of(shares):>34}")
        for server in servers:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
