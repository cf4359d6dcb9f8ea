"""Holds real models, served without any configuration, against ONNX Runtime.

    python check.py write REPOSITORY     puts the models of the installed packages into a repository
    python check.py check HOST:PORT      asks the server, and ONNX Runtime, and compares

magika is asked as its own client asks it: the package's session is replaced by the server, so that
its features go out and its labels come back. Prints `ok NAME` for each, exits 1 otherwise.
"""

import os
import shutil
import sys

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import magika
import numpy
import onnx
import onnxruntime
import tritonclient.http as triton

LIGHT = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
MAGIKA = os.path.join(os.path.dirname(magika.__file__), "models", "standard_v3_3", "model.onnx")
RESNET = os.path.join(LIGHT, "light_resnet50.onnx")


def write(repository):
    for name, path in (("magika", MAGIKA), ("resnet50", RESNET)):
        folder = os.path.join(repository, name, "1")
        os.makedirs(folder)
        shutil.copy(path, os.path.join(folder, "model.onnx"))


def ask(client, model, feeds, outputs):
    inputs = []
    for name, value in feeds.items():
        tensor = triton.InferInput(name, list(value.shape), {"float32": "FP32", "int32": "INT32"}[str(value.dtype)])
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    answer = client.infer(model, inputs, outputs=[triton.InferRequestedOutput(name) for name in outputs])
    return [answer.as_numpy(name) for name in outputs]


class Served:
    """What magika takes for its session."""

    def __init__(self, client):
        self.client = client
        self.calls = 0

    def run(self, outputs, feeds):
        self.calls += 1
        feeds = {name: numpy.asarray(value, dtype=numpy.int32) for name, value in feeds.items()}
        return ask(self.client, "magika", feeds, outputs)


SAMPLES = {
    "python": b"import os\n\n\ndef main():\n    for name in os.listdir('.'):\n        print(name)\n\n\nmain()\n" * 4,
    "json": b'{\n  "name": "a",\n  "shape": [1, 2],\n  "nested": {"datatype": "FP32", "data": [1.0, 2.0]},\n  "on": true\n}\n',
    "html": b"<!DOCTYPE html>\n<html><head><title>t</title></head><body><p>Hello</p></body></html>\n" * 4,
    "rust": b"use std::fs;\n\nfn main() {\n    let text = fs::read_to_string(\"a\").unwrap();\n    println!(\"{text}\");\n}\n" * 4,
    "shell": b"#!/usr/bin/env bash\nset -euo pipefail\nfor file in *; do\n  echo \"$file\"\ndone\n" * 4,
    "csv": b"name,age,city\nada,36,london\ngrace,45,new york\nalan,41,manchester\n" * 6,
}


def check_magika(client):
    local, remote = magika.Magika(), magika.Magika()
    remote._onnx_session = Served(client)
    for name, content in SAMPLES.items():
        want, got = local.identify_bytes(content), remote.identify_bytes(content)
        assert got.output.label == want.output.label, (name, got.output.label, want.output.label)
        assert abs(got.score - want.score) < 1e-4, (name, got.score, want.score)
        assert want.output.label == name, (name, want.output.label)
    assert remote._onnx_session.calls == len(SAMPLES)


def check_resnet50(client):
    session = onnxruntime.InferenceSession(RESNET, providers=["CPUExecutionProvider"])
    feed, output = session.get_inputs()[0], session.get_outputs()[0]
    image = numpy.random.default_rng(20).random(feed.shape, dtype=numpy.float32)
    [want] = session.run([output.name], {feed.name: image})
    [got] = ask(client, "resnet50", {feed.name: image}, [output.name])
    assert got.shape == want.shape, (got.shape, want.shape)
    assert numpy.allclose(got, want, rtol=1e-3, atol=1e-5), numpy.abs(got - want).max()


def check(address):
    client = triton.InferenceServerClient(address, network_timeout=120, connection_timeout=120)
    failed = 0
    for check in (check_magika, check_resnet50):
        name = check.__name__.removeprefix("check_")
        try:
            check(client)
            print("ok", name)
        except Exception as error:  # the next check shall run too
            failed += 1
            print(f"FAILED {name}: {error!r}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](sys.argv[2])
