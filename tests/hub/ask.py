"""ask.py HTTP GRPC EXPECTED: asks a server over REST, gRPC, generate and both streams for the answers in a file, and compares."""

import json
import queue
import sys
import urllib.request

import numpy as np
import tritonclient.grpc
import tritonclient.http

address, other, expected = sys.argv[1:]
clients = {"rest": (tritonclient.http, tritonclient.http.InferenceServerClient(address)),
           "grpc": (tritonclient.grpc, tritonclient.grpc.InferenceServerClient(other))}


def elements(name, values):
    return [bytes.fromhex(value) if name == "image" else value.encode() for value in values]


def same(model, name, got, want):
    place = f"{model}: {name}: {got} is not {want}"
    if isinstance(want, str) or isinstance(want, int):
        assert got == want, place
    elif isinstance(want, float):
        assert abs(got - want) <= 2e-6 * max(1, abs(want)), place
    else:
        assert len(got) == len(want), place
        for one, another in zip(got, want):
            same(model, name, one, another)


def streamed(model, inputs):
    """The answer to one request over a stream of gRPC."""
    answers = queue.Queue()
    client = tritonclient.grpc.InferenceServerClient(other)
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    client.async_stream_infer(model, inputs)
    answer, error = answers.get()
    client.stop_stream()
    assert error is None, f"{model}: {error}"
    return answer


def compare(case, answer):
    """Compares the outputs of an answer; returns their number."""
    for name, want in case["outputs"].items():
        got = answer.as_numpy(name)
        text = lambda value: value.decode() if isinstance(value, bytes) else [text(part) for part in value]
        texts = text(got.tolist()) if got.dtype == object else got.tolist()
        if np.ndim(want) == 1 and np.ndim(got) == 2:
            texts = [value for (value,) in texts]
        same(case["model"], name, texts, want)
    return len(case["outputs"])


count, seen = 0, set()
for case in json.load(open(expected)):
    for kind, (library, client) in clients.items():
        inputs = []
        for name, values in case["inputs"].items():
            is_flag = isinstance(values[0], bool)
            shape = [len(values)] if case.get("flat") else [len(values), 1]
            tensor = library.InferInput(name, shape, "BOOL" if is_flag else "BYTES")
            array = np.array(values) if is_flag else np.array(elements(name, values), dtype=object)
            tensor.set_data_from_numpy(array.reshape(shape))
            inputs.append(tensor)
        count += compare(case, client.infer(case["model"], inputs))
    # Once for each model, and so for each kind.
    is_first = case["model"] not in seen
    seen.add(case["model"])
    if is_first:
        count += compare(case, streamed(case["model"], inputs))
    if "image" not in case["inputs"]:
        is_list = lambda name: case.get("flat") and name == "labels"
        one = {name: values if is_list(name) else values[0] for name, values in case["inputs"].items()}
        path = f"http://{address}/v2/models/{case['model']}/generate"
        answer = json.load(urllib.request.urlopen(urllib.request.Request(path, json.dumps(one).encode())))
        for name in case["outputs"]:
            assert name in answer, f"{case['model']}: generate has no {name}: {answer}"
        if is_first:
            events = urllib.request.urlopen(urllib.request.Request(path + "_stream", json.dumps(one).encode())).read()
            (event,) = [line for line in events.decode().splitlines() if line]
            assert json.loads(event.removeprefix("data: ")) == answer, f"{case['model']}: {event} is not {answer}"
print(f"{count} outputs are equal")
