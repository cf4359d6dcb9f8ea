#!/usr/bin/env python3
"""Cost of a process of its own for a model on ONNX Runtime: p50 and CPU of a request, with one client.

    python3 benches/isolation_cost.py PROGRAM LIBONNXRUNTIME.so [ROUNDS]

Needs onnx and numpy. The server has core 0, the client core 1. Each model is served twice, with the parameter `isolation` set
to `none` and to `process`; they take turns. CPU is that of the server and its processes. Prints medians of the rounds."""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper

PORT = 18_810
REQUESTS = 1500
MODES = ("none", "process")


def model(nodes, inputs, output, weights=()):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info(*each) for each in inputs], [info(*output)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def divide():
    """One division of integers, and a request to it."""
    integer, names = TensorProto.INT64, ("a", "b")
    file = model([helper.make_node("Div", names, ["y"])], [(name, integer, ["n"]) for name in names], ("y", integer, ["n"]))
    return file, [{"name": name, "shape": [1], "datatype": "INT64", "data": [7]} for name in names]


def layers(width):
    """Three dense layers of a width, and a request to them."""
    weights = [np.full((width, width), 1 / width, np.float32) for _ in range(3)]
    weights = [numpy_helper.from_array(values, f"w{index}") for index, values in enumerate(weights)]
    nodes = [helper.make_node("MatMul", [f"y{index}", f"w{index}"], [f"y{index + 1}"]) for index in range(3)]
    ends = [(name, TensorProto.FLOAT, [1, width]) for name in ("y0", "y3")]
    request = {"name": "y0", "shape": [1, width], "datatype": "FP32", "data": [0.5] * width}
    return model(nodes, ends[:1], ends[1], weights), [request]


def write(repository, name, file):
    for mode in MODES:
        folder = f"{repository}/{name}_{mode}"
        os.makedirs(f"{folder}/1")
        with open(f"{folder}/1/model.onnx", "wb") as out:
            out.write(file)
        with open(f"{folder}/config.pbtxt", "w") as out:
            out.write(f'max_batch_size: 0 parameters {{ key: "isolation" value {{ string_value: "{mode}" }} }}\n')


def cpu(server):
    """Seconds of CPU of a server and its processes."""
    processes = [server]
    for thread in os.listdir(f"/proc/{server}/task"):
        with open(f"/proc/{server}/task/{thread}/children") as file:
            processes += file.read().split()
    ticks = 0
    for process in processes:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(server, name, body, count):
    """Microseconds of p50, and of CPU for each request."""
    connection, times, before = http.client.HTTPConnection("127.0.0.1", PORT), [], cpu(server)
    for _ in range(count):
        begun = time.perf_counter()
        connection.request("POST", f"/v2/models/{name}/infer", body)
        response = connection.getresponse()
        response.read()
        times.append(time.perf_counter() - begun)
        if response.status != 200:
            sys.exit(f"{name} answers {response.status}")
    return 1e6 * statistics.median(times), 1e6 * (cpu(server) - before) / count


def wait_ready(server):
    while server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORT)
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    sys.exit("the server ended")


def main():
    program, library, rounds = sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["5"])[0])
    models = {"div": divide(), **{f"layers_{width}": layers(width) for width in (16, 512, 1024)}}
    with tempfile.TemporaryDirectory() as repository:
        for name, (file, _) in models.items():
            write(repository, name, file)
        ports = [f"--{name}-port={PORT + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        engine = ["--onnx-engine=onnxruntime", f"--backend-config=onnxruntime,library={library}", "--log-info=false"]
        server = subprocess.Popen(["taskset", "-c", "0", program, "serve", repository, *engine, *ports])
        try:
            wait_ready(server)
            os.sched_setaffinity(0, {1})
            for name, (_, inputs) in models.items():
                body, found = json.dumps({"inputs": inputs}), {mode: [] for mode in MODES}
                for mode in MODES:
                    measure(server.pid, f"{name}_{mode}", body, 200)
                for _ in range(rounds):
                    for mode in MODES:
                        found[mode].append(measure(server.pid, f"{name}_{mode}", body, REQUESTS))
                for what, column in (("p50", 0), ("CPU", 1)):
                    none, process = (statistics.median(row[column] for row in found[mode]) for mode in MODES)
                    print(f"{name}: {what} {none:.0f} µs in the server, {process:.0f} µs apart", flush=True)
        finally:
            server.terminate()
            server.wait()


main()
