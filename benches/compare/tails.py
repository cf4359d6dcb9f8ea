"""Latency of one client, with its tail: a text to a label by FastAPI and by Deuteron, in turns, unpinned.

    python benches/compare/tails.py [--binary target/release/deuteron] [--rounds 7] [--seconds 3] [--loads idle,0,10]
        [--flags=--pin=off]

Needs fastapi, uvicorn, onnxruntime and numpy (`pip install`). All answer the same JSON, {"sentence": "…"}, over one
connection kept open:

- FastAPI: tokenizer, ONNX Runtime and labels in one process;
- `text`: the same in one model.py of Deuteron, run by the same onnxruntime;
- `language`: examples/text by its model.py files, an ensemble of Python, ONNX and Python (`--steps=off`);
- `language`: the same whose last part is a step (its tokenizer has the parameter `steps` with the value `off`);
- `language`: the example as it is, steps around ONNX;
- `language_encoder`: its ONNX model alone, binary tensors.

With the loads `0` and `10`, a busy loop of that niceness has each core, too. Rows are medians over the rounds with the
least and the most.
"""

import argparse
import http.client
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FASTAPI = """
import os, sys
sys.path.insert(0, os.path.dirname(__file__))
import numpy as np, onnxruntime
from fastapi import FastAPI, Request
from wordpiece import WordPiece

tokenizer = WordPiece(os.path.dirname(__file__))
session = onnxruntime.InferenceSession(os.path.join(os.path.dirname(__file__), "model.onnx"))
labels = np.array(open(os.path.join(os.path.dirname(__file__), "labels.txt"), encoding="utf-8").read().split())
app = FastAPI()

@app.post("/generate")
async def generate(request: Request):
    ids = np.array([tokenizer.encode((await request.json())["sentence"], 128)])
    probabilities = session.run(["probabilities"], {"ids": ids, "mask": (ids != 0).astype(np.float32)})[0]
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :3]
    return {"labels": labels[best][0].tolist(), "scores": np.take_along_axis(probabilities, best, axis=1)[0].tolist()}
"""
MODEL = """
import os
import numpy as np, onnxruntime
import triton_python_backend_utils as pb_utils
from .wordpiece import WordPiece

class TritonPythonModel:
    def initialize(self, args):
        folder = pb_utils.get_model_dir()
        self.tokenizer = WordPiece(folder)
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"))
        self.labels = np.array(open(os.path.join(folder, "labels.txt"), encoding="utf-8").read().split(), dtype=object)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        sentences = pb_utils.get_input_tensor_by_name(request, "sentence").as_numpy()
        ids = np.array([self.tokenizer.encode(bytes(text).decode("utf-8"), 128) for text in sentences[:, 0]])
        probabilities = self.session.run(["probabilities"], {"ids": ids, "mask": (ids != 0).astype(np.float32)})[0]
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :3]
        scores = np.take_along_axis(probabilities, best, axis=1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("labels", self.labels[best]), pb_utils.Tensor("scores", scores)])
"""
CONFIG = """
name: "text"
backend: "python"
max_batch_size: 32
input { name: "sentence" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "labels" data_type: TYPE_STRING dims: [ 3 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }
"""
SENTENCE = json.dumps({"sentence": "Dove posso comprare un biglietto per il treno di domani mattina?"}).encode()


class Closed:
    """A client of one request at a time."""

    def __init__(self, name, port, path, body, headers):
        self.name, self.path, self.body, self.headers = name, path, body, headers
        self.connection = http.client.HTTPConnection("localhost", port)

    def ask(self):
        self.connection.request("POST", self.path, self.body, self.headers)
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text

    def turn(self, seconds):
        """p50 and p99 in ms."""
        until, times = time.monotonic() + seconds, []
        for _ in range(20):
            self.ask()
        while (began := time.perf_counter()) and time.monotonic() < until:
            self.ask()
            times.append(time.perf_counter() - began)
        times.sort()
        return times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000


def serve(options, folder):
    """The servers, and a client of each."""
    example = ROOT / "examples/text"
    for repository in ("models", "python_tokenizer"):
        for name in ("language", "language_tokenizer", "language_encoder", "language_labels"):
            shutil.copytree(example / name, folder / repository / name)
    with open(folder / "python_tokenizer/language_tokenizer/config.pbtxt", "a", encoding="utf-8") as config:
        config.write('parameters { key: "steps" value { string_value: "off" } }\n')
    for place in (folder / "models/text/1", folder / "fastapi"):
        place.mkdir(parents=True)
        for name in ("wordpiece.py", "tokenizer.json", "punctuation.txt"):
            shutil.copy(example / "language_tokenizer/1" / name, place)
        shutil.copy(example / "language_encoder/1/model.onnx", place)
        shutil.copy(example / "language_labels/1/labels.txt", place)
    (folder / "models/text/1/model.py").write_text(MODEL)
    (folder / "models/text/config.pbtxt").write_text(CONFIG)
    (folder / "fastapi/app.py").write_text(FASTAPI)
    import onnxruntime

    library = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    common = ["--log-info=false", f"--backend-config=python,interpreter={sys.executable}"]
    common += [f"--backend-config=onnxruntime,library={library}", *options.flags]

    def deuteron(repository, port, *flags):
        ports = [f"--http-port={port}", f"--grpc-port={port + 1}", f"--metrics-port={port + 2}"]
        return [options.binary, "serve", str(folder / repository), *common, *flags, *ports]

    started = [
        [sys.executable, "-m", "uvicorn", "app:app", "--app-dir", str(folder / "fastapi"), "--port", "31000", "--log-level", "error",
         "--timeout-keep-alive", "600"],
        deuteron("models", 31010, "--steps=off"),
        deuteron("python_tokenizer", 31020),
        deuteron("models", 31030),
    ]
    servers = [subprocess.Popen(command) for command in started]
    import numpy

    header = json.dumps({"inputs": [
        {"name": "ids", "shape": [1, 128], "datatype": "INT64", "parameters": {"binary_data_size": 1024}},
        {"name": "mask", "shape": [1, 128], "datatype": "FP32", "parameters": {"binary_data_size": 512}},
    ], "parameters": {"binary_data_output": True}}).encode()
    ids = (numpy.arange(128) % 60).astype(numpy.int64)
    tensors = header + ids.tobytes() + (ids != 0).astype(numpy.float32).tobytes()
    kind, length = {"Content-Type": "application/json"}, {"Inference-Header-Content-Length": str(len(header))}
    return servers, [
        Closed("FastAPI, one process", 31000, "/generate", SENTENCE, kind),
        Closed("one model.py", 31010, "/v2/models/text/generate", SENTENCE, kind),
        Closed("Python, ONNX, Python", 31010, "/v2/models/language/generate", SENTENCE, kind),
        Closed("Python, ONNX, step", 31020, "/v2/models/language/generate", SENTENCE, kind),
        Closed("step, ONNX, step", 31030, "/v2/models/language/generate", SENTENCE, kind),
        Closed("the ONNX model alone", 31030, "/v2/models/language_encoder/infer", tensors, length),
    ]


def ready(client):
    for _ in range(600):
        try:
            return client.ask()
        except (OSError, AssertionError, http.client.HTTPException):
            client.connection.close()
            time.sleep(0.1)
    raise SystemExit(f"{client.name} does not answer")


def show(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/deuteron"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--loads", default="idle,0,10")
    parser.add_argument("--flags", default="", help="more flags of Deuteron, by spaces")
    options = parser.parse_args()
    options.flags = options.flags.split()
    with tempfile.TemporaryDirectory() as folder:
        servers, clients = serve(options, pathlib.Path(folder))
        loops = []
        try:
            for client in clients:
                ready(client)
            for load in options.loads.split(","):
                if load != "idle":
                    busy = ["nice", "-n", load, sys.executable, "-c", "while True: pass"]
                    loops = [subprocess.Popen(busy) for _ in range(os.cpu_count())]
                taken = {client.name: ([], []) for client in clients}
                for _ in range(options.rounds):
                    for client in clients:
                        for times, value in zip(taken[client.name], client.turn(options.seconds)):
                            times.append(value)
                print(f"\nload: {load}\n| | p50, ms | p99, ms | p99 / FastAPI's |\n|---|---|---|---|")
                first = taken[clients[0].name][1]
                for name, (p50, p99) in taken.items():
                    ratio = statistics.median(ours / theirs for ours, theirs in zip(p99, first))
                    print(f"| {name} | {show(p50)} | {show(p99)} | {ratio:.2f} |", flush=True)
                for loop in loops:
                    loop.kill()
                    loop.wait()
                loops = []
        finally:
            for process in servers + loops:
                process.terminate()
            for process in servers + loops:
                process.wait()


if __name__ == "__main__":
    main()
