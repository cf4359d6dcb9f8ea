#!/usr/bin/env python3
"""Libraries in `model.py` beside the same code in a plain process that has the same CPUs.

    python3 benches/python_threads.py PROGRAM[,PROGRAM…] PYTHON[,PYTHON…] [SECONDS] [ROUNDS] [LIBRARY…]

Each interpreter measures those of scikit-learn, XGBoost, LightGBM, torch and onnxruntime that it has. A server with default
flags and one instance, a server with two, and the plain process have core 0, then cores 0-1, then 4 and 8 where there are as
many, and then the time of one CPU by a control group, where this user may make one. They take turns; those that wait sleep.
The time is that of the library's call alone, taken in the process by the same code, while two requests wait for each
instance. Prints medians of the rounds' medians, and the plain process's time as a ratio to the served one: 1.00 is as fast,
more is faster."""

import atexit
import contextlib
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WORK = '''
import os
import sys
import time

import numpy as np

RANDOM = np.random.default_rng(7)


def scikit_learn():
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = RANDOM.random((2000, 16))
    model = HistGradientBoostingClassifier(max_iter=100).fit(rows, rows[:, 0] > rows[:, 1])
    batch = rows[:64]
    return lambda: model.predict_proba(batch)


def xgboost():
    import xgboost

    rows = RANDOM.random((2000, 16))
    data = xgboost.DMatrix(rows, label=rows[:, 0] > rows[:, 1])
    model = xgboost.train({"max_depth": 6, "objective": "binary:logistic"}, data, 200)
    batch = RANDOM.random((4096, 16))
    return lambda: model.inplace_predict(batch)


def lightgbm():
    import lightgbm

    rows = RANDOM.random((2000, 16))
    data = lightgbm.Dataset(rows, label=rows[:, 0] > rows[:, 1])
    model = lightgbm.train({"objective": "binary", "verbosity": -1}, data, 200)
    batch = RANDOM.random((4096, 16))
    return lambda: model.predict(batch)


def torch():
    import torch

    layers = [layer for _ in range(6) for layer in (torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU())]
    model, batch = torch.nn.Sequential(*layers).eval(), torch.rand(1, 64, 56, 56)

    def run():
        with torch.no_grad():
            return model(batch)

    return run


def onnxruntime():
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(RANDOM.random((768, 768), dtype=np.float32) / 768, "w")
    nodes = [helper.make_node("MatMul", [f"y{i}", "w"], [f"y{i + 1}"]) for i in range(8)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 768]) for name in ("y0", "y8")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    batch = {"y0": RANDOM.random((64, 768), dtype=np.float32)}
    return lambda: session.run(None, batch)


class Work:
    """The call of a library, and the time that it takes."""

    def __init__(self, library):
        self.run = globals()[library]()

    def seconds(self):
        begun = time.perf_counter()
        self.run()
        return time.perf_counter() - begun


def main(library):
    work = Work(library)
    print("ready", flush=True)
    for line in sys.stdin:
        end, times = time.monotonic() + float(line), []
        while time.monotonic() < end or not times:
            times.append(work.seconds())
        print(len(times), float(np.median(times)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
'''

MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils

from work import Work


class TritonPythonModel:
    def initialize(self, args):
        self.work = Work("LIBRARY")

    def execute(self, requests):
        times = [np.array([self.work.seconds()]) for _ in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("seconds", time)]) for time in times]
'''

CONFIG = """backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "seconds" data_type: TYPE_FP64 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: COUNT } ]
"""
BODY = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[0]}]}'
LIBRARIES = {"scikit_learn": "sklearn", "xgboost": "xgboost", "lightgbm": "lightgbm", "torch": "torch", "onnxruntime": "onnxruntime"}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def children():
    """An environment that says nothing about threads."""
    return {name: value for name, value in os.environ.items() if name not in THREADS}


class Cpus:
    """Which CPUs a process has: by a control group where this user may make one, which no library leaves; else by affinity."""

    def __init__(self, name, cores, quota=False):
        self.name, self.cores, self.quota = name, cores, quota

    def start(self, line, **options):
        """Starts a process that has them."""
        folders = [folder for folder in (cpuset(self.cores), quota() if self.quota else None) if folder]
        enter = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in folders) + 'exec "$@"'
        line = ["taskset", "-c", self.cores, "sh", "-c", enter, "sh", *line]
        return subprocess.Popen(line, env=children(), **options)


MADE = []


def group(root, files):
    """A control group with these files; None if this user may not make one."""
    folder = f"{root}/deuteron-bench-{os.getpid()}-{len(MADE)}"
    try:
        os.mkdir(folder)
    except OSError:
        return None
    MADE.append(folder)
    try:
        for name, text in files.items():
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
    except OSError:
        return None
    return folder


def cpuset(cores):
    """With these cores (version 1 only: in version 2 the group above has to allow it)."""
    return group("/sys/fs/cgroup/cpuset", {"cpuset.cpus": cores, "cpuset.mems": "0"})


def quota():
    """With the time of one CPU."""
    first = group("/sys/fs/cgroup/cpu", {"cpu.cfs_quota_us": "100000"})
    return first or group("/sys/fs/cgroup", {"cpu.max": "100000 100000"})


def remove_groups():
    for folder in MADE:
        for _ in range(20):
            try:
                os.rmdir(folder)
                break
            except OSError:
                time.sleep(0.05)


atexit.register(remove_groups)


class Bare:
    """The code in a plain process."""

    def __init__(self, cpus, python, folder, library):
        line = [python, f"{folder}/m/1/work.py", library]
        self.process = cpus.start(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"{python} cannot run {library}")

    def median(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        count, median = self.process.stdout.readline().split()
        return float(median), int(count) / seconds

    def end(self):
        self.process.kill()
        self.process.wait()


class Served:
    """The code in a server's model."""

    PORT = 18_600

    def __init__(self, cpus, python, folder, program):
        Served.PORT += 3
        self.port = Served.PORT
        ports = [f"--{name}-port={self.port + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        line = [program, "serve", folder, f"--backend-config=python,interpreter={python}", "--log-info=false", *ports]
        self.process = cpus.start(line, stderr=subprocess.DEVNULL)
        atexit.register(self.process.kill)
        for _ in range(1200):
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", self.port)
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status == 200:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{program} is not ready")

    def ask(self, end, times):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        while time.monotonic() < end or not times:
            connection.request("POST", "/v2/models/m/infer", BODY, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            times.append(answer["outputs"][0]["data"][0])

    def median(self, seconds, clients=2):
        end, times = time.monotonic() + seconds, [[] for _ in range(clients)]
        threads = [threading.Thread(target=self.ask, args=(end, own)) for own in times]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        times = [time for own in times for time in own]
        return statistics.median(times), len(times) / seconds

    def end(self):
        self.process.terminate()
        self.process.wait()


def write(folder, library, count):
    shutil.rmtree(f"{folder}/m", ignore_errors=True)
    os.makedirs(f"{folder}/m/1")
    texts = {"1/work.py": WORK, "1/model.py": MODEL.replace("LIBRARY", library), "config.pbtxt": CONFIG.replace("COUNT", str(count))}
    for name, text in texts.items():
        with open(f"{folder}/m/{name}", "w") as file:
            file.write(text)


def measure(cpus, python, programs, library, seconds, rounds):
    """A row: milliseconds of the plain process, then of each program with one instance, then the rates of two."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        write(one, library, 1)
        write(two, library, 2)
        bare = Bare(cpus, python, one, library)
        bare.median(seconds)
        alone, found = [], [([], [], []) for _ in programs]
        for program, (times, rates, pairs) in zip(programs, found):
            served, pair = Served(cpus, python, one, program), Served(cpus, python, two, program)
            served.median(seconds), pair.median(seconds, 4)
            for _ in range(rounds):
                alone.append(bare.median(seconds))
                median, rate = served.median(seconds)
                times.append(median)
                rates.append(rate)
                pairs.append(pair.median(seconds, 4)[1])
            served.end(), pair.end()
        bare.end()
    median, rate = (statistics.median(column) for column in zip(*alone))
    cells = [library.replace("_", "-"), cpus.name, f"{1000 * median:.2f} ms", f"{rate:.0f}/s"]
    for times, _, pairs in found:
        time = statistics.median(times)
        cells += [f"{1000 * time:.2f} ms", f"{median / time:.2f}", f"{statistics.median(pairs):.0f}/s"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    # `finally` blocks and exit hooks run after SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    programs, pythons = sys.argv[1].split(","), sys.argv[2].split(",")
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 1
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    count = len(os.sched_getaffinity(0))
    cpus = [Cpus("1 core", "0")] + [Cpus(f"{n} cores", f"0-{n - 1}") for n in (2, 4, 8) if n <= count]
    if count > 1 and quota():
        cpus.append(Cpus(f"1 CPU by quota, {count} cores", f"0-{count - 1}", True))
    heads = ["library", "CPUs", "plain process", "its rate"]
    for program in programs:
        heads += [program, "plain / served", "rate of two instances"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for python in pythons:
        wanted = sys.argv[5:] or LIBRARIES
        for library, module in ((library, LIBRARIES[library]) for library in wanted):
            has = subprocess.run([python, "-c", f"import {module}"], env=children(), capture_output=True)
            for each in cpus if has.returncode == 0 else []:
                measure(each, python, programs, library, seconds, rounds)


main()
