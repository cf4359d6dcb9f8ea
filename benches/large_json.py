#!/usr/bin/env python3
"""Wait of a small request while its shard reads a large JSON body.

    python3 benches/large_json.py target/release/deuteron [BODIES] [FLAGS]

One shard on core 0, the clients on core 1. One sends a body of 7,420,000 numbers (67 MB) again and again; another asks for
16 numbers every millisecond on a connection of its own. For each body: how long until its answer began, and what the other
client waited for meanwhile, its median, p99 and longest, in milliseconds. At last the same without a large body: what the
machine does by itself."""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

MODEL = """name: "identity_fp32"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
NUMBERS = 7_420_000
PORT = 18_700


def request(numbers):
    """Asks for the output in binary form, so that the answer of a large body costs little."""
    data = ",".join(numbers)
    body = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%d],"data":[%s]}],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}' % (len(numbers), data)
    head = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def receive_answer(connection):
    """Reads one answer; returns when its first bytes came."""
    answer = connection.recv(65_536)
    first = time.monotonic()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"not answered: {answer[:300]}")
    left = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0]) - len(body)
    while left > 0:
        came = len(connection.recv(min(left, 1 << 20)))
        if came == 0:
            sys.exit("the connection was closed within an answer")
        left -= came
    return first


class Prober:
    """The client of small requests: a process of its own, or Python's lock would be measured."""

    def __init__(self):
        self.output, inner = os.pipe()
        self.process = os.fork()
        if self.process:
            os.close(inner)
            return
        connection = socket.create_connection(("127.0.0.1", PORT))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = request([str(value) for value in range(16)])
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        while True:
            begun = time.monotonic()
            connection.sendall(message)
            end = receive_answer(connection)
            os.write(inner, b"%.6f %.4f\n" % (begun, (end - begun) * 1e3))
            time.sleep(max(0, begun + 0.001 - time.monotonic()))

    def take(self):
        """Pairs of a request's begin and its milliseconds, since the last call."""
        os.set_blocking(self.output, False)
        text = b""
        while True:
            try:
                text += os.read(self.output, 1 << 16)
            except BlockingIOError:
                return [tuple(map(float, line.split())) for line in text.splitlines() if line.count(b" ") == 1]


def describe(times):
    times = sorted(times)
    return f"{len(times)} small: median {statistics.median(times):.2f}, p99 {times[int(len(times) * 0.99)]:.2f}, longest {times[-1]:.2f}"


def main():
    binary, bodies, flags = sys.argv[1], int((sys.argv[2:] or ["12"])[0]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as repository:
        os.makedirs(f"{repository}/identity_fp32/1")
        with open(f"{repository}/identity_fp32/config.pbtxt", "w") as file:
            file.write(MODEL)
        line = ["taskset", "-c", "0", binary, "serve", repository, "--shards=1", f"--http-port={PORT}", "--log-info=false"]
        line += [f"--grpc-port={PORT + 1}", f"--metrics-port={PORT + 2}", *flags]
        server = subprocess.Popen(line)
        try:
            os.sched_setaffinity(0, {1})
            measure(bodies)
        finally:
            server.terminate()
            server.wait()


def measure(bodies):
    message = request([f"{value % 1000 / 1000:.6f}" for value in range(NUMBERS)])
    for _ in range(200):
        try:
            connection = socket.create_connection(("127.0.0.1", PORT))
            break
        except OSError:
            time.sleep(0.02)
    prober = Prober()
    longest = []
    time.sleep(0.5)
    prober.take()
    for index in range(bodies):
        begun = time.monotonic()
        connection.sendall(message)
        sent = time.monotonic()
        first = receive_answer(connection)
        end = time.monotonic()
        time.sleep(0.1)
        times = [took for at, took in prober.take() if begun - 0.05 <= at <= end]
        longest.append(max(times))
        print(f"body {index + 1}: sent after {sent - begun:.3f} s, answer after {first - begun:.3f} s; {describe(times)}", flush=True)
    print(f"longest of each body: median {statistics.median(longest):.2f} ms ({min(longest):.2f} to {max(longest):.2f})")
    time.sleep(3)
    print(f"no large body: {describe([took for _, took in prober.take()])}")
    os.kill(prober.process, 9)


main()
