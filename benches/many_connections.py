#!/usr/bin/env python3
"""Cost of 10,000 connections: memory of idle ones, and requests when each sends one a second.

    python3 benches/many_connections.py target/release/deuteron [CONNECTIONS]

The server has one shard on core 0, its clients core 1. *Idle*: each connection had an answer, over HTTP/1.1 and HTTP/2; resident
memory 15 seconds later, and the CPU and context switches of all threads over ten seconds. *Paced* (`h2load --rps=1`, its
connections opened evenly over five seconds): latency from its log, CPU per request beside that of 64 connections at the
same rate of requests and in a closed loop; nginx (`return 200` with a body of the same size) beside it in the same
run, where there is one. Needs a limit of open files of twice as many (`ulimit -n`)."""

import os
import pathlib
import resource
import shutil
import socket
import struct
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
PATH = "/v2/models/identity_fp32/infer"
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","data":[%s]}]}' % b",".join([b"1"] * 16)
NGINX = """daemon off; master_process off; pid %(folder)s/pid; error_log stderr crit;
worker_rlimit_nofile 20000; events { worker_connections 19000; multi_accept on; }
http { access_log off; keepalive_timeout 600; keepalive_requests 1000000000; client_body_temp_path %(folder)s;
  server { listen 127.0.0.1:%(port)d backlog=4096; location / { return 200 '%(body)s'; } } }
"""


def processes(root):
    """A process and its children."""
    found = [root]
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == root:
            found.append(int(process))
    return found


def per_thread(root, name):
    for process in processes(root):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/{name}") as file:
                yield file.read()


def cpu(root):
    """Seconds that all threads have run."""
    return sum(int(text.split()[0]) for text in per_thread(root, "schedstat")) / 1e9


def switches(root):
    lines = (line for text in per_thread(root, "status") for line in text.splitlines())
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def resident(root):
    """Bytes of memory that are the process's own."""
    with open(f"/proc/{root}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def start(line, port):
    process = subprocess.Popen(["taskset", "-c", "0", *line], stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").read()
            return process
        except OSError:
            time.sleep(0.02)
    sys.exit(f"{line[0]} is not ready")


def deuteron(binary, folder, port):
    os.makedirs(f"{folder}/models/identity_fp32/1", exist_ok=True)
    with open(f"{folder}/models/identity_fp32/config.pbtxt", "w") as file:
        file.write(MODEL)
    ports = [f"--{name}-port={port + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
    return start([binary, "serve", f"{folder}/models", "--shards=1", "--log-info=false", "--connections-max=15000", *ports], port)


def nginx(folder, port):
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port - 10}{PATH}", BODY)) as answer:
        body = answer.read().decode()
    with open(f"{folder}/nginx.conf", "w") as file:
        file.write(NGINX % {"folder": folder, "port": port, "body": body})
    return start(["nginx", "-p", folder, "-c", f"{folder}/nginx.conf"], port)


def http1(port):
    head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head + BODY)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    return connection


def http2(port):
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    # :method POST, :scheme http, :path and :authority as literals without an index.
    fields = b"\x83\x86" + b"\x04" + bytes([len(PATH)]) + PATH.encode() + b"\x01\x01a"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(4, 1, 0, b""))
    connection.sendall(frame(1, 4, 1, fields) + frame(0, 1, 1, BODY))
    received, ends = b"", False
    while not ends:
        received += connection.recv(65536)
        rest = received
        while len(rest) >= 9 and len(rest) >= 9 + (size := int.from_bytes(rest[:3])):
            ends |= rest[3] == 0 and rest[4] & 1 == 1
            rest = rest[9 + size :]
    return connection


def idle(root, port, count, connect):
    """Bytes for a connection, CPU in percent and context switches a second while all are idle."""
    warm = [connect(port) for _ in range(100)]
    time.sleep(3)
    before = resident(root)
    connections = [connect(port) for _ in range(count)]
    # A connection rests after a second, and the allocator gives back memory that is free for some
    # seconds.
    time.sleep(15)
    size = (resident(root) - before) / count
    ran, switched = cpu(root), switches(root)
    time.sleep(10)
    ran, switched = (cpu(root) - ran) * 10, (switches(root) - switched) / 10
    for connection in warm + connections:
        connection.close()
    time.sleep(2)
    return size, ran, switched


def loaded(root, port, arguments, log):
    """Requests, CPU for each in microseconds, median and p99 in microseconds."""
    pathlib.Path(log).unlink(missing_ok=True)
    before = cpu(root)
    line = ["taskset", "-c", "1", "h2load", "--h1", "-t1", "-d", log + ".body", "--log-file", log, *arguments]
    done = subprocess.run([*line, f"http://127.0.0.1:{port}{PATH}"], capture_output=True, text=True)
    used = cpu(root) - before
    with open(log) as file:
        rows = [line.split("\t") for line in file]
    assert rows and all(row[1] == "200" for row in rows), done.stdout
    times = sorted(int(row[2]) for row in rows)
    return len(times), used / len(times) * 1e6, times[len(times) // 2], times[len(times) * 99 // 100]


def main():
    binary, count = sys.argv[1], int((sys.argv[2:] or [10_000])[0])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        with open(log + ".body", "wb") as file:
            file.write(BODY)
        port = 18_400
        servers = [("deuteron", deuteron(binary, folder, port), port)]
        if shutil.which("nginx"):
            servers.append(("nginx", nginx(folder, port + 10), port + 10))
        loads = [
            (f"{count} connections, 1 request/s each", [f"-n{10 * count}", f"-c{count}", f"-r{count // 5}", "--rps=1"]),
            (f"64 connections, {count} requests/s", [f"-n{10 * count}", "-c64", f"--rps={count // 64}"]),
            ("64 connections, closed loop", ["-n200000", "-c64"]),
        ]
        for _ in range(2):
            for load, arguments in loads:
                for name, process, at in servers:
                    requests, used, median, late = loaded(process.pid, at, arguments, log)
                    print(f"{load}, {name}: {used:.1f} µs of CPU, p50 {median} µs, p99 {late} µs ({requests} requests)", flush=True)
        for protocol, connect in (("HTTP/1.1", http1), ("HTTP/2", http2)):
            for name, process, at in servers[: 2 if connect is http1 else 1]:
                size, ran, switched = idle(process.pid, at, count, connect)
                print(f"idle over {protocol}, {name}: {size:.0f} bytes each; {ran:.2f} % of a core, {switched:.1f} switches/s", flush=True)
        for _, process, _ in servers:
            process.terminate()
            process.wait()


main()
