"""Holds PyTorch models, served by the engine for them, against torch in Python.

    python check.py export REPOSITORY             exports models in TorchScript, each with its configuration
    python check.py check HOST:PORT REPOSITORY    asks the server, and torch, and compares
    python check.py time HOST:PORT REPOSITORY     compares the server's time of a run with that of torch

`check` prints a line for each model, `NAME<TAB>RESULT`: `exact` where every number is the same, `equal` where all are within
1e-5 + 0.01 %, and `WRONG: WHERE` otherwise. Batches of 1 to 8 rows are asked, four requests at a time, so that the server
puts some of them together. Needs nothing but torch and numpy.
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Dict, List, Tuple

import numpy
import torch
from torch import nn

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

DATATYPES = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32,
    "INT64": torch.int64, "FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64,
}
NUMPY = {
    "BOOL": bool, "UINT8": "u1", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2",
    "FP32": "<f4", "FP64": "<f8",
}
TOLERANCE = 1e-4, 1e-5
ROWS_MAX = 8


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4), nn.Softmax(1))

    def forward(self, x):
        return self.layers(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        return self.head(self.features(image).flatten(1))


class Recurrent(nn.Module):
    """A network with a state, which a sequence carries from request to request."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, x, state):
        new = self.cell(x, state)
        return new.sum(1, keepdim=True), new


class Dictionary(nn.Module):
    def forward(self, tensors: Dict[str, torch.Tensor]) -> Tuple[torch.Tensor, torch.Tensor]:
        return tensors["left"] - tensors["right"], tensors["left"] * tensors["right"]


class Words(nn.Module):
    def forward(self, words: List[str]) -> Tuple[List[str], torch.Tensor]:
        shouted: List[str] = []
        sizes: List[int] = []
        for word in words:
            shouted.append(word.upper() + "!")
            sizes.append(len(word))
        return shouted, torch.tensor(sizes).reshape(-1, 1)


class Branches(nn.Module):
    """Goes another way for other numbers, and writes into its input."""

    def forward(self, x, y):
        x.add_(1)
        if bool(y.sum() > 0):
            return x + y, x.t(), y[:, 1:]
        return x - y, x.t(), y[:, 1:]


class Keeper(nn.Module):
    """Keeps an input until the next run, and counts its runs in a buffer that it gives back."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(1, 4)
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        last = self.last
        self.last = x
        self.count.add_(1)
        return last, self.count


class Same(nn.Module):
    def forward(self, x):
        return torch.stack([x, x], 1)


def tensors(side, list_of):
    def one(name, datatype, dims):
        reshape = ""
        if datatype == "STRING":
            reshape = " reshape { shape: [ ] }"
        return f'{side} {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)}{reshape} }}\n'
    return "".join(one(*each) for each in list_of)


def models():
    """Name, module, example for tracing, batching, inputs, outputs, further lines."""
    torch.manual_seed(7)
    batches = f"max_batch_size: {ROWS_MAX}\ndynamic_batching {{ max_queue_delay_microseconds: 2000 }}\n"
    fp32 = "FP32"
    yield "mlp", Perceptron(), torch.zeros(1, 16), batches, [("INPUT__0", fp32, [16])], [("OUTPUT__0", fp32, [4])], ""
    yield ("cnn", Convolutions(), torch.zeros(1, 3, 32, 32), batches, [("image", fp32, [3, 32, 32])],
           [("scores", fp32, [10])], "instance_group { count: 2 kind: KIND_CPU }\n")
    yield ("dictionary", Dictionary(), None, batches, [("left", fp32, [5]), ("right", fp32, [5])],
           [("product__1", fp32, [5]), ("difference__0", fp32, [5])], "")
    yield "words", Words(), None, batches, [("words", "STRING", [1])], [("shouted__0", "STRING", [1]), ("sizes__1", "INT64", [1])], ""
    yield ("branches", Branches(), None, "", [("x", fp32, [2, 3]), ("y", fp32, [2, 3])],
           [("sum__0", fp32, [2, 3]), ("turned__1", fp32, [3, 2]), ("part__2", fp32, [2, 2])], "")
    yield "keeper", Keeper(), None, "", [("x", fp32, [1, 4])], [("last__0", fp32, [1, 4]), ("count__1", "INT64", [1])], ""
    for datatype in DATATYPES:
        yield (f"same_{datatype.lower()}", Same(), None, batches, [("x", datatype, [3])], [("y__0", datatype, [2, 3])],
               'parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } }\n')
    state = """sequence_batching { oldest { } state [ { input_name: "state__1" output_name: "state__1" data_type: TYPE_FP32
      dims: [ 6 ] initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 6 ] zero_data: true } } ] }\n"""
    yield "recurrent", Recurrent(), None, "max_batch_size: 4\n" + state, [("x__0", fp32, [4])], [("y__0", fp32, [1])], ""


def export(repository):
    for name, module, example, batches, inputs, outputs, further in models():
        folder = os.path.join(repository, name, "1")
        os.makedirs(folder, exist_ok=True)
        module.eval()
        script = torch.jit.script(module) if example is None else torch.jit.trace(module, example)
        script.save(os.path.join(folder, "model.pt"))
        with open(os.path.join(repository, name, "config.pbtxt"), "w") as file:
            file.write('platform: "pytorch_libtorch"\n' + batches + tensors("input", inputs) + tensors("output", outputs) + further)


def encode(array, datatype):
    if datatype != "BYTES":
        return numpy.ascontiguousarray(array, NUMPY[datatype]).tobytes()
    return b"".join(len(text).to_bytes(4, "little") + text for text in array.reshape(-1))


def decode(data, datatype, shape):
    if datatype != "BYTES":
        return numpy.frombuffer(data, NUMPY[datatype]).reshape(shape)
    texts = []
    while data:
        size = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return numpy.array(texts, object).reshape(shape)


def infer(server, model, inputs, parameters=None):
    """The outputs by name, of inputs `[(name, datatype, array)]`."""
    parts = [encode(array, datatype) for _, datatype, array in inputs]
    described = [
        {"name": name, "datatype": datatype, "shape": list(array.shape), "parameters": {"binary_data_size": len(part)}}
        for (name, datatype, array), part in zip(inputs, parts)
    ]
    asked = {"inputs": described, "parameters": dict(parameters or {}, binary_data_output=True)}
    head = json.dumps(asked).encode()
    request = urllib.request.Request(
        f"http://{server}/v2/models/{model}/infer", head + b"".join(parts), {"Inference-Header-Content-Length": str(len(head))}
    )
    with urllib.request.urlopen(request) as reply:
        body, size = reply.read(), int(reply.headers["Inference-Header-Content-Length"])
    data, answers = body[size:], {}
    for output in json.loads(body[:size])["outputs"]:
        count = output["parameters"]["binary_data_size"]
        answers[output["name"]] = decode(data[:count], output["datatype"], output["shape"])
        data = data[count:]
    return answers


def random_array(datatype, shape, rng):
    if datatype == "STRING":
        return numpy.array([("wörd" * rng.integers(0, 4)).encode() for _ in range(shape[0])], object).reshape(shape)
    if datatype == "BOOL":
        return rng.random(shape) < 0.5
    if datatype.startswith("FP"):
        return rng.standard_normal(shape).astype(NUMPY[datatype])
    limits = numpy.iinfo(NUMPY[datatype])
    return rng.integers(limits.min, limits.max, shape, NUMPY[datatype].replace("u1", "uint8").replace("i1", "int8"), True)


def run_here(script, inputs, is_dictionary):
    def value(datatype, array):
        if datatype == "STRING":
            return [text.decode() for text in array.reshape(-1)]
        return torch.from_numpy(numpy.array(array))
    with torch.inference_mode():
        values = [value(datatype, array) for _, datatype, array in inputs]
        if is_dictionary:
            returned = script({name: value for (name, _, _), value in zip(inputs, values)})
        else:
            returned = script(*values)
        returned = list(returned) if isinstance(returned, tuple) else [returned]
        # The module's next run changes its tensors, so they are copied.
        return [list(value) if isinstance(value, list) else value.clone().numpy() for value in returned]


def compare(name, want, came):
    if isinstance(want, list):
        return "exact" if [text.encode() for text in want] == list(came.reshape(-1)) else f"WRONG: {name}"
    if came.shape != want.shape:
        return f"WRONG: {name} has shape {came.shape}, expected {want.shape}"
    if numpy.array_equal(came, want):
        return "exact"
    relative, absolute = TOLERANCE
    if want.dtype.kind == "f" and numpy.allclose(came.astype("f8"), want.astype("f8"), relative, absolute):
        return "equal"
    return f"WRONG: {name}"


def ask(server, repository, model, inputs, outputs, has_rows, results, rng, rounds):
    # A module of its own: torch may run one on a thread at a time.
    script = torch.jit.load(os.path.join(repository, model, "1", "model.pt"))
    for number in range(rounds):
        rows = number % ROWS_MAX + 1
        shape = lambda dims: ([rows] if has_rows else []) + list(dims)
        given = [(name, datatype, random_array(datatype, shape(dims), rng)) for name, datatype, dims in inputs]
        want = run_here(script, given, model == "dictionary")
        wire = [(name, "BYTES" if datatype == "STRING" else datatype, array) for name, datatype, array in given]
        try:
            answers = infer(server, model, wire)
        except urllib.error.HTTPError as error:
            results.append(f"WRONG: {error.read().decode()}")
            return
        for index, (name, _, _) in enumerate(outputs):
            place = int(name.rpartition("__")[2]) if "__" in name else index
            results.append(compare(name, want[place], answers[name]))


def ask_recurrent(server, repository, results, rng):
    script = torch.jit.load(os.path.join(repository, "recurrent", "1", "model.pt"))
    state = torch.zeros(1, 6)
    for number in range(6):
        x = random_array("FP32", [1, 4], rng)
        parameters = {"sequence_id": 7, "sequence_start": number == 0, "sequence_end": number == 5}
        came = infer(server, "recurrent", [("x__0", "FP32", x)], parameters)["y__0"]
        with torch.inference_mode():
            want, state = script(torch.from_numpy(x), state)
        results.append(compare("y__0", want.numpy(), came))


def check(server, repository):
    torch.set_num_threads(1)
    for name, _, _, batches, inputs, outputs, _ in models():
        results = []
        if name == "recurrent":
            ask_recurrent(server, repository, results, numpy.random.default_rng(1))
        else:
            # A model with a state of its own has one client.
            clients, has_rows = (1 if name == "keeper" else 4), bool(batches)
            arguments = (server, repository, name, inputs, outputs, has_rows, results)
            threads = [
                threading.Thread(target=ask, args=(*arguments, numpy.random.default_rng(seed), 2 * ROWS_MAX))
                for seed in range(clients)
            ]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        wrong = [result for result in results if result.startswith("WRONG")]
        result = wrong[0] if wrong else "equal" if "equal" in results else "exact" if results else "WRONG: nothing asked"
        print(f"{name}\t{result}", flush=True)


def time_runs(server, repository):
    """The median time of a run in the server, from its statistics, beside that of torch in this process."""
    torch.set_num_threads(1)
    for name, dims in (("mlp", [16]), ("cnn", [3, 32, 32])):
        script = torch.jit.load(os.path.join(repository, name, "1", "model.pt"))
        input_name = "INPUT__0" if name == "mlp" else "image"
        for rows in (1, ROWS_MAX):
            x = numpy.random.default_rng(1).standard_normal([rows, *dims]).astype("f4")
            times, tensor = [], torch.from_numpy(x)
            with torch.inference_mode():
                for _ in range(300):
                    begin = time.perf_counter()
                    script(tensor)
                    times.append(time.perf_counter() - begin)
            here = sorted(times[100:])[100] * 1e6
            [infer(server, name, [(input_name, "FP32", x)]) for _ in range(100)]
            before = statistics(server, name)
            [infer(server, name, [(input_name, "FP32", x)]) for _ in range(200)]
            after = statistics(server, name)
            there = [(after[key] - before[key]) / 200 / 1000 for key in ("compute_input", "compute_infer", "compute_output")]
            print(f"{name}\t{rows} rows\ttorch {here:.1f} us\tserver: input {there[0]:.1f}, run {there[1]:.1f}, output {there[2]:.1f} us", flush=True)


def statistics(server, model):
    with urllib.request.urlopen(f"http://{server}/v2/models/{model}/stats") as reply:
        counted = json.load(reply)["model_stats"][0]["inference_stats"]
    return {key: counted[key]["ns"] for key in ("compute_input", "compute_infer", "compute_output")}


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    {"export": export, "check": check, "time": time_runs}[verb](*rest)
