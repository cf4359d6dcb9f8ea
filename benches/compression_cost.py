"""Cost of compression for a server: CPU time per request with a tensor of 64 KiB there and back, for each coding each way,
in turns. Plain Python, no packages. Use: taskset -c 1 python3 benches/compression_cost.py BINARY [ROUNDS]"""

import gzip
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib

COUNT, REQUESTS = 16 * 1024, 1_000
CONFIG = """backend: "identity"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def tensor(kind):
    """Bytes as real tensors have them: of pixels (256 values), or of a normal distribution."""
    chance = random.Random(7)
    value = (lambda: chance.randrange(256) / 255) if kind == "pixels" else (lambda: chance.gauss(0, 1))
    return struct.pack(f"<{COUNT}f", *(value() for _ in range(COUNT)))


def request(data, sent, wanted):
    head = json.dumps({
        "inputs": [{"name": "x", "shape": [COUNT], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }).encode()
    body = {"": bytes, "gzip": lambda body: gzip.compress(body, 6), "deflate": zlib.compress}[sent](head + data)
    fields = [f"Content-Length: {len(body)}", f"Inference-Header-Content-Length: {len(head)}"]
    fields += [f"Content-Encoding: {sent}"] * bool(sent) + [f"Accept-Encoding: {wanted}"] * bool(wanted)
    return ("POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n" + "\r\n".join(fields) + "\r\n\r\n").encode() + body


def answer_size(connection, asked):
    connection.sendall(asked)
    have = b""
    while b"\r\n\r\n" not in have:
        have += connection.recv(1 << 20)
    head, body = have.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200"), head + body
    size = int(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1])
    left = size - len(body)
    while left > 0:
        left -= len(connection.recv(1 << 20))
    return size


def cpu(process):
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(binary, rounds):
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/m/1")
        with open(f"{folder}/m/config.pbtxt", "w") as file:
            file.write(CONFIG)
        flags = ["--shards=1", "--http-port=18600", "--allow-grpc=false", "--allow-metrics=false"]
        server = subprocess.Popen(["taskset", "-c", "0", binary, "serve", folder, *flags], stderr=subprocess.DEVNULL)
        time.sleep(1)
        rows = {}
        cases = [("", ""), ("gzip", ""), ("deflate", ""), ("", "gzip"), ("", "deflate"), ("", "zstd"), ("gzip", "gzip")]
        try:
            for _ in range(rounds):
                for kind in ("pixels", "normal"):
                    for sent, wanted in cases:
                        asked = request(tensor(kind), sent, wanted)
                        with socket.create_connection(("127.0.0.1", 18600)) as connection:
                            size = answer_size(connection, asked)
                            before = cpu(server.pid)
                            for _ in range(REQUESTS):
                                answer_size(connection, asked)
                            took = (cpu(server.pid) - before) / REQUESTS * 1e6
                        rows.setdefault((kind, sent, wanted), ([], len(asked), size))[0].append(took)
        finally:
            server.terminate()
            server.wait()
    print("| values | request | answer | bytes there | back | CPU, us (least to most) |\n|---|---|---|---|---|---|")
    for (kind, sent, wanted), (took, there, back) in rows.items():
        middle, least, most = statistics.median(took), min(took), max(took)
        print(f"| {kind} | {sent or 'plain'} | {wanted or 'plain'} | {there:,} | {back:,} | "
              f"{middle:.0f} ({least:.0f} to {most:.0f}) |")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
