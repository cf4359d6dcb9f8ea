#!/usr/bin/env python3
"""Scaling over cores: a server with N shards beside N servers with one shard each, and beside one shard alone.

    python3 benches/cores.py target/release/deuteron [N,N…] [SECONDS] [ROUNDS]

N servers share only the machine: caches, memory, the kernel. A server with N shards has a cost of its own on top:
cache lines that several shards write. Servers have the first N cores. Their clients (`h2load`, one process on each client's
core for each shard, 32 connections a shard in all) have the N after them, or, on a machine without so many, the servers' own
cores, then also where one shard is alone. Each of them asks all servers, so that as many bytes go from core to core either
way. The three take turns. Prints CPU per request and requests/s of each (medians, least to most), and both as ratios."""

import atexit
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

CONFIG = """name: "%s"
backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
# As many instances in a server as it has shards: each is a thread.
INSTANCES = "instance_group [ { count: %d kind: KIND_CPU } ]\n"
WORKER = 'dynamic_batching { }\nparameters { key: "placement" value { string_value: "worker" } }\n'
JSON = b'{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","data":[%s]}]}' % b",".join([b"1"] * 16)
CONNECTIONS = 32


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def message(model):
    """A ModelInferRequest with its length before it."""
    tensor = field(1, b"INPUT0") + field(2, b"FP32") + field(3, b"\x01\x10")
    request = field(1, model.encode()) + field(5, tensor) + field(7, bytes(64))
    return b"\0" + len(request).to_bytes(4, "big") + request


def loads(folder):
    """Name, path of the URL, port after the server's first, and further arguments of h2load."""
    for name, content in (("json", JSON), ("grpc", message("identity"))):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(content)
    grpc = ["-m1", "-d", f"{folder}/grpc", "-H", "content-type: application/grpc", "-H", "te: trailers"]
    yield "HTTP, JSON", "/v2/models/identity/infer", 0, ["--h1", "-d", f"{folder}/json"]
    yield "gRPC", "/inference.GRPCInferenceService/ModelInfer", 1, grpc
    yield "HTTP, JSON, batched on a worker", "/v2/models/worker/infer", 0, ["--h1", "-d", f"{folder}/json"]


class Server:
    """A server with its shards on the cores given."""

    def __init__(self, binary, models, cores, port):
        self.port = port
        ports = [f"--{name}-port={port + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        line = [binary, "serve", models, f"--shards={len(cores)}", "--log-info=false", *ports]
        self.process = subprocess.Popen(["taskset", "-c", ",".join(map(str, cores)), *line])
        # The process ends even if a measurement fails.
        atexit.register(self.process.kill)
        for _ in range(500):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").read()
                return
            time.sleep(0.02)
        sys.exit("the server is not ready")

    def cpu(self):
        """Seconds that its threads have run."""
        threads = f"/proc/{self.process.pid}/task"
        used = 0
        for thread in os.listdir(threads):
            with open(f"{threads}/{thread}/schedstat") as file:
                used += int(file.read().split()[0])
        return used / 1e9

    def end(self):
        self.process.terminate()
        self.process.wait()


def measure(servers, shards, cores, load, seconds):
    """CPU seconds per request and requests/s of all servers together. Each client's core asks each shard's part of the connections."""
    _, path, port, arguments = load
    each = max(1, CONNECTIONS // len(cores))
    asked = servers * (shards // len(servers))
    clients = []
    before = [server.cpu() for server in servers]
    for core in cores:
        for server in asked:
            line = ["taskset", "-c", str(core), "h2load", "-t1", f"-c{each}", "-D", str(seconds), *arguments]
            clients.append(subprocess.Popen([*line, f"http://127.0.0.1:{server.port + port}{path}"], stdout=subprocess.PIPE, text=True))
    done = 0
    for client in clients:
        text = client.communicate()[0]
        total, good = re.search(r"requests: (\d+) total", text), re.search(r"status codes: (\d+) 2xx", text)
        if client.returncode or not good or int(good[1]) < int(total[1]):
            sys.exit(text)
        done += int(good[1])
    used = sum(server.cpu() - first for server, first in zip(servers, before))
    return used / done, done / seconds


def spread(values, scale, form):
    values = sorted(value * scale for value in values)
    return f"{statistics.median(values):{form}} ({values[0]:{form}}–{values[-1]:{form}})"


def repository(folder, instances):
    """The models, with `instances` instances on workers."""
    models = f"{folder}/{instances}"
    for name, more in (("identity", ""), ("worker", WORKER + INSTANCES % instances)):
        os.makedirs(f"{models}/{name}/1", exist_ok=True)
        with open(f"{models}/{name}/config.pbtxt", "w") as file:
            file.write(CONFIG % name + more)
    return models


def compare(binary, folder, count, seconds, rounds):
    has_enough = os.cpu_count() >= 2 * count
    cores = list(range(count))
    clients = [core + count for core in cores] if has_enough else cores
    single, many = repository(folder, 1), repository(folder, count)
    alone, together = Server(binary, single, cores[:1], 18_500), Server(binary, many, cores, 18_510)
    apart = [Server(binary, single, [core], 18_520 + 10 * core) for core in cores]
    setups = {
        "one shard": ([alone], 1, clients[:1]),
        f"a server with {count}": ([together], count, clients),
        f"{count} servers with one": (apart, count, clients),
    }
    print(f"\n{count} shards, clients on {'other' if has_enough else 'the same'} cores\n")
    print("| | " + " | ".join(f"{name}: CPU µs; requests/s" for name in setups) + " | CPU to N servers | requests/s to N servers | to N × one |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for load in loads(folder):
        figures = {name: [] for name in setups}
        for turn in range(rounds):
            for name in list(setups)[:: 1 if turn % 2 else -1]:
                figures[name].append(measure(*setups[name], load, seconds))
        columns = [tuple(zip(*figures[name])) for name in setups]
        cells = [f"{spread(cpu, 1e6, '.2f')}; {spread(rate, 1, ',.0f')}" for cpu, rate in columns]
        (_, one), (cpu, rate), (cpu_apart, rate_apart) = [[statistics.median(column) for column in pair] for pair in columns]
        ratios = [f"{cpu / cpu_apart:.3f}", f"{rate / rate_apart:.3f}", f"{rate / count / one:.3f}"]
        print(f"| {load[0]} | " + " | ".join(cells + ratios) + " |", flush=True)
    for server in (alone, together, *apart):
        server.end()


def main():
    binary = sys.argv[1]
    counts, seconds, rounds = [given or default for given, default in zip(sys.argv[2:] + [""] * 3, ("2", "2", "5"))]
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, counts.split(",")):
            compare(binary, folder, count, int(seconds), int(rounds))


main()
