#!/usr/bin/env python3
"""The start of Python models: time of a load with 1 and with 8 instances, memory, and the time from SIGKILL to the next answer.

    python3 benches/python_start.py PROGRAM PYTHON ROUNDS [IMPORT…]

Each model imports numpy and one of IMPORT (default: none, and `transformers`), with `fork=off` and `fork=on`. Prints medians.
Memory is PSS of all processes of the model, in MiB, divided by its instances; a template is one of these processes."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 18_800
MODEL = """import numpy as np
{imports}
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([1], np.int32))]) for _ in requests]
"""
CONFIG = """backend: "python"
input {{ name: "x" data_type: TYPE_INT32 dims: 1 }}
output {{ name: "y" data_type: TYPE_INT32 dims: 1 }}
instance_group {{ count: {count} kind: KIND_CPU }}
"""
REQUEST = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}


def post(path, body):
    """The status of a request, 0 without an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v2/{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status
    except OSError as error:
        return getattr(error, "code", 0)


def children(parent):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                if int(stat.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(name))
        except OSError:
            pass
    return found


def cpu(pid):
    """Seconds of processor time."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rows:
        return next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024


def is_template(pid):
    with open(f"/proc/{pid}/cmdline", errors="replace") as line:
        return "(template)" in line.read()


def measure(program, python, imports, count, fork):
    """Seconds of a load, those of its processes on cores, MiB for each instance, and seconds to recover."""
    with tempfile.TemporaryDirectory() as repository:
        os.makedirs(f"{repository}/m/1")
        with open(f"{repository}/m/1/model.py", "w") as file:
            file.write(MODEL.format(imports=imports and "import " + imports))
        with open(f"{repository}/m/config.pbtxt", "w") as file:
            file.write(CONFIG.format(count=count))
        ports = [f"--{name}-port={PORT + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        flags = [f"--backend-config=python,interpreter={python}", f"--backend-config=python,fork={fork}"]
        flags += ["--model-control-mode=explicit", *ports]
        log = subprocess.DEVNULL
        server = subprocess.Popen([program, "serve", repository, *flags], stdout=log, stderr=log)
        try:
            while post("repository/index", {}) != 200:
                time.sleep(0.01)
            begun = time.perf_counter()
            if post("repository/models/m/load", {}) != 200:
                sys.exit(f"the model with {imports or 'numpy'} does not load")
            loaded = time.perf_counter() - begun
            processes = children(server.pid)
            busy = sum(map(cpu, processes))
            memory = sum(map(pss, processes)) / count
            post("models/m/infer", REQUEST)
            recovered = 0.0
            if count == 1:
                killed = next(pid for pid in processes if not is_template(pid))
                os.kill(killed, signal.SIGKILL)
                begun = time.perf_counter()
                while post("models/m/infer", REQUEST) != 200:
                    time.sleep(0.001)
                recovered = time.perf_counter() - begun
            return loaded, busy, memory, recovered
        finally:
            server.terminate()
            server.wait()


def main():
    program, python, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for imports in sys.argv[4:] or ["", "transformers"]:
        cases = [(count, fork) for count in (1, 8) for fork in ("off", "on")]
        results = {case: [] for case in cases}
        for _ in range(rounds):
            for case in cases:
                results[case].append(measure(program, python, imports, *case))
        for (count, fork), own in results.items():
            loaded, busy, memory, recovered = map(statistics.median, zip(*own))
            row = f"{imports or 'numpy'}, {count} instances, fork={fork}: load {1000 * loaded:.0f} ms (least"
            row += f" {1000 * min(own)[0]:.0f}), CPU {1000 * busy:.0f} ms, {memory:.1f} MiB each"
            print(row + (f", recovered in {1000 * recovered:.0f} ms" if count == 1 else ""), flush=True)


main()
