"""Latency for users: NVIDIA's clients against two servers in turns, A B B A.

    python clients.py --a HTTP,GRPC,PID --b HTTP,GRPC,PID --model NAME [--shape INPUT:16]
        [--perf-analyzer PATH] [--clients pa-http,…] [--concurrency 1,16,64] [--seconds 2]

Prints a row for each client and number of requests at a time: p50, p99 and requests/s of A and B, the CPU time of
each server's process for a request, and the ratio of each. A figure is the median of its server's turns. Clients of
Python have a thread (or a task of asyncio) for each request at a time, in one process: many wait for Python's lock, and
then it is the client that is measured.
"""

import argparse
import asyncio
import csv
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import triton_to_np_dtype

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"
CLIENTS = ("pa-http", "pa-grpc", "http", "grpc", "http-aio", "grpc-aio")
TICK = os.sysconf("SC_CLK_TCK")
# Seconds before the first request that counts: connections, threads and the client's own first calls are not measured.
WARM_UP = 0.5
# The request count of perf_analyzer when many requests are under way: two seconds or more.
PERF_REQUESTS = 20_000
# Such a run takes 2 to 7 seconds, but some wait for ever though their last answer has come: it is repeated up to
# PERF_TRIES times.
PERF_SECONDS, PERF_TRIES = 20, 10


class Server:
    def __init__(self, text):
        self.http, self.grpc, pid = text.split(",")
        self.pid = int(pid)

    def cpu(self):
        """Seconds of its process, user and system."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def answered(self, model):
        with tritonclient.http.InferenceServerClient(self.http) as client:
            stats = client.get_inference_statistics(model)["model_stats"]
        return sum(version["inference_stats"]["success"]["count"] for version in stats)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--a", type=Server, required=True, metavar="HTTP,GRPC,PID")
    parser.add_argument("--b", type=Server, required=True, metavar="HTTP,GRPC,PID")
    parser.add_argument("--model", required=True)
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT:1,16")
    parser.add_argument("--perf-analyzer", default="perf_analyzer", metavar="PATH")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--concurrency", default="1,16,64")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=1, help="of A B B A")
    return parser.parse_args()


def inputs(module, server, options):
    """Random tensors for the model's inputs, of the shapes given, else with 1 for each size that varies."""
    given = dict(shape.split(":", 1) for shape in options.shape)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        metadata = client.get_model_metadata(options.model)
    made = []
    for tensor in metadata["inputs"]:
        shape = [max(1, int(size)) for size in tensor["shape"]]
        if tensor["name"] in given:
            shape = [int(size) for size in given[tensor["name"]].split(",")]
        dtype = triton_to_np_dtype(tensor["datatype"])
        value = module.InferInput(tensor["name"], shape, tensor["datatype"])
        value.set_data_from_numpy(numpy.random.default_rng(1).random(shape).astype(dtype))
        made.append(value)
    return made


def threads(module, address, server, options, concurrency):
    """Latencies in seconds of a closed loop of threads."""
    tensors = inputs(module, server, options)
    counted, latencies = time.monotonic() + WARM_UP, []

    def loop():
        own = []
        with module.InferenceServerClient(address) as client:
            while (begin := time.monotonic()) < counted + options.seconds:
                client.infer(options.model, tensors)
                if begin >= counted:
                    own.append(time.monotonic() - begin)
        latencies.extend(own)

    running = [threading.Thread(target=loop) for _ in range(concurrency)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return latencies


async def tasks(module, address, server, options, concurrency):
    """The same of tasks of asyncio over one client."""
    tensors = inputs(module, server, options)
    counted, latencies = time.monotonic() + WARM_UP, []
    more = {"conn_limit": concurrency} if module is tritonclient.http.aio else {}
    async with module.InferenceServerClient(address, **more) as client:

        async def loop():
            while (begin := time.monotonic()) < counted + options.seconds:
                await client.infer(options.model, tensors)
                if begin >= counted:
                    latencies.append(time.monotonic() - begin)

        await asyncio.gather(*(loop() for _ in range(concurrency)))
    return latencies


def perf_analyzer(protocol, address, options, concurrency):
    """p50, p99 and requests/s by perf_analyzer. With many at a time it is asked for a request count instead of windows, in which
    it never ends; requests/s are NaN then, since it divides by whole seconds."""
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        command = [options.perf_analyzer, "-m", options.model, "-i", protocol, "-u", address, "-f", file.name]
        # A fifth of the time for each of its windows: its work on the requests afterwards takes long if they are many.
        window = str(int(options.seconds * 200))
        command += ["--concurrency-range", str(concurrency)]
        command += ["--request-count", str(PERF_REQUESTS)] if concurrency > 1 else ["-p", window, "-s", "999", "-r", "3"]
        command += [word for shape in options.shape for word in ("--shape", shape)]
        for _ in range(PERF_TRIES):
            try:
                longest = PERF_SECONDS if concurrency > 1 else None
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=longest)
                break
            except subprocess.TimeoutExpired:
                print(f"perf_analyzer over {protocol} with {concurrency} at {address} has not ended: again", file=sys.stderr)
        else:
            raise SystemExit(f"{' '.join(command)}\nhas not ended within {PERF_SECONDS} s, {PERF_TRIES} times")
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        row = next(csv.DictReader(file.read().decode().splitlines()))
    rate = math.nan if concurrency > 1 else float(row["Inferences/Second"])
    return float(row["p50 latency"]) / 1e6, float(row["p99 latency"]) / 1e6, rate


def measure(client, server, options, concurrency):
    """p50, p99, requests/s and the server's CPU seconds for each."""
    modules = {
        "http": (tritonclient.http, tritonclient.http.aio, server.http),
        "grpc": (tritonclient.grpc, tritonclient.grpc.aio, server.grpc),
    }
    cpu, answered = server.cpu(), server.answered(options.model)
    if client.startswith("pa-"):
        protocol = client[3:]
        figures = perf_analyzer(protocol, modules[protocol][2], options, concurrency)
    else:
        blocking, waiting, address = modules[client.split("-")[0]]
        if client.endswith("-aio"):
            latencies = asyncio.run(tasks(waiting, address, server, options, concurrency))
        else:
            latencies = threads(blocking, address, server, options, concurrency)
        figures = statistics.median(latencies), numpy.percentile(latencies, 99), len(latencies) / options.seconds
    return *figures, (server.cpu() - cpu) / max(1, server.answered(options.model) - answered)


def row(client, concurrency, ours, theirs):
    ours, theirs = ([statistics.median(column) for column in zip(*turns)] for turns in (ours, theirs))
    cells = [f"{client}, {concurrency}"]
    for index, scale, unit in ((0, 1e6, "µs"), (1, 1e6, "µs"), (2, 1, "/s"), (3, 1e6, "µs")):
        a, b = ours[index] * scale, theirs[index] * scale
        ratio = (a / b if index == 2 else b / a) if a and b else math.nan
        cells.append("–" if math.isnan(a) else f"{a:,.0f} and {b:,.0f} {unit} ({ratio:.1f})")
    return "| " + " | ".join(cells) + " |"


def main():
    options = arguments()
    print(f"{options.model}: A and B (how many times better A is)\n")
    print("| client, requests at a time | p50 | p99 | requests/s | CPU of the server for each |\n|---|---|---|---|---|")
    for client in options.clients.split(","):
        if client not in CLIENTS:
            raise SystemExit(f"'{client}': expected one of {', '.join(CLIENTS)}")
        for concurrency in map(int, options.concurrency.split(",")):
            turns = {options.a: [], options.b: []}
            for server in (options.a, options.b, options.b, options.a) * options.rounds:
                turns[server].append(measure(client, server, options, concurrency))
            print(row(client, concurrency, turns[options.a], turns[options.b]), flush=True)


main()
