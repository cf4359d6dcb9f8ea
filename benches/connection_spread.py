#!/usr/bin/env python3
"""Distribution of new connections, and the effect of a connection that keeps its shard busy on the others.

    python3 benches/connection_spread.py target/release/deuteron [SHARDS]

Opens 16 and 1,000 connections on a server with 4 shards, over and over, and counts those of each shard by its metrics. Then
one client asks an inline model with large JSON tensors all the time, and others come with small requests: how many land on
the busy shard, and how long they wait."""

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

MODEL = """name: "identity_fp32"
backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
PORT = 28100


def request(count):
    body = {"inputs": [{"name": "INPUT0", "shape": [1, count], "datatype": "FP32", "data": [0.1] * count}]}
    body = json.dumps(body).encode()
    head = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


SMALL = request(16)


def exchange(connection, message):
    connection.sendall(message)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1 << 16)
    head, _, body = answer.partition(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < size:
        body += connection.recv(1 << 20)


def metric(name):
    text = urllib.request.urlopen(f"http://127.0.0.1:{PORT + 2}/metrics").read().decode()
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith(name)]


def connect(message):
    connection = socket.create_connection(("127.0.0.1", PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    exchange(connection, message)
    return connection


def open_now(count):
    while sum(have := metric("deuteron_shard_connections_open")) != count:
        time.sleep(0.01)
    return have


def spread(count, rounds):
    least, most = [], []
    before = metric("deuteron_connections_handed_over_total")[0]
    for _ in range(rounds):
        held = [connect(SMALL) for _ in range(count)]
        have = open_now(count)
        least.append(min(have))
        most.append(max(have))
        for connection in held:
            connection.close()
        open_now(0)
    moved = metric("deuteron_connections_handed_over_total")[0] - before
    print(f"{count} connections, {rounds} times: {min(least)} to {max(most)} on a shard, {100 * moved / count / rounds:.0f} % handed over")


def waits(connections):
    took = [[] for _ in connections]
    for _ in range(200):
        for connection, own in zip(connections, took):
            begun = time.perf_counter()
            exchange(connection, SMALL)
            own.append(1e6 * (time.perf_counter() - begun))
            time.sleep(0.0002)
    return took


def tell(name, took):
    p50 = sorted(round(statistics.median(own)) for own in took)
    p99 = sorted(round(sorted(own)[len(own) * 99 // 100]) for own in took)
    print(f"{name}: of each connection p50 {p50} µs, p99 {p99} µs")


def heavy(binary):
    """One client's large JSON tensors, in a closed loop on one connection: reading and writing them is the shard's work."""
    line = [binary, "bench", "-m", "identity_fp32", f"-u=127.0.0.1:{PORT}", "--json", "--shape=INPUT0:20000"]
    before = [connect(SMALL) for _ in range(8)]
    tell("nobody else", waits(before))
    client = subprocess.Popen(line + ["--request-count=1000000"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        tell("beside a heavy one", waits(before))
        own = sum(metric("deuteron_shard_connections_open")) - len(before)
        for connection in before:
            connection.close()
        print("by shard, the heavy client's:", open_now(own))
        time.sleep(0.6)
        after = [connect(SMALL) for _ in range(8)]
        print("by shard, with 8 that came after it:", open_now(own + len(after)))
        tell("those", waits(after))
    finally:
        client.terminate()
        client.wait()


def main():
    shards = sys.argv[2] if len(sys.argv) > 2 else "4"
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as repository:
        os.makedirs(f"{repository}/identity_fp32/1")
        with open(f"{repository}/identity_fp32/config.pbtxt", "w") as file:
            file.write(MODEL)
        line = [sys.argv[1], "serve", repository, f"--shards={shards}", "--log-info=false"]
        ports = [f"--{name}-port={PORT + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        server = subprocess.Popen(line + ports)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v2/health/ready").read()
                    break
                except OSError:
                    time.sleep(0.05)
            open_now(0)
            spread(16, 50)
            spread(1_000, 5)
            heavy(sys.argv[1])
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
