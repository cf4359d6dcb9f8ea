#!/usr/bin/env python3
"""Cost of the steps of a text model on top of the model: p50 and CPU of a request, with one client.

    python3 benches/steps_cost.py PROGRAM [ROUNDS]

Needs onnx and numpy. The server has core 0, the client core 1. One small network with a vocabulary of 30,000 words is served three
times: alone, which is asked with the ids of 21 words; with the step `tokenize` before it; and with `tokenize` and a `head` (softmax,
five labels). They take turns. Requests and answers are binary. Prints medians of the rounds, least and most, and the differences."""

import http.client
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper

PORT = 18_840
REQUESTS = 1000
WORDS, WIDTH, LABELS = 21, 64, 10
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
RANDOM = random.Random(1)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vocabulary():
    words = set()
    while len(words) < 30_000:
        words.add("".join(RANDOM.choice(LETTERS) for _ in range(RANDOM.randint(2, 9))))
    return SPECIAL + sorted(words) + ["##" + letter for letter in LETTERS]


def tokenizer(words):
    """The JSON of a tokenizer of BERT's parts."""
    added = [{"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for index, token in enumerate(SPECIAL)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                           "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": None,
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                      "vocab": {word: index for index, word in enumerate(words)}}}


def network(words):
    """The mean of the words' vectors, and a matrix."""
    info, random_numbers = helper.make_tensor_value_info, np.random.default_rng(1)
    weights = {"words": (len(words), WIDTH), "head": (WIDTH, LABELS)}
    weights = [numpy_helper.from_array(random_numbers.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()]
    weights += [numpy_helper.from_array(np.array([1]), "axis"), numpy_helper.from_array(np.array([-1]), "last")]
    nodes = [helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
             helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
             helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
             helper.make_node("Mul", ["embedded", "column"], ["kept"]),
             helper.make_node("ReduceSum", ["kept", "axis"], ["sum"], keepdims=0),
             helper.make_node("MatMul", ["sum", "head"], ["logits"])]
    inputs = [info(name, TensorProto.INT64, ["n", "t"]) for name in ("input_ids", "attention_mask")]
    graph = helper.make_graph(nodes, "g", inputs, [info("logits", TensorProto.FLOAT, ["n", LABELS])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


TEXT = 'input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }\n'
LOGITS = f'output {{ name: "logits" data_type: TYPE_FP32 dims: [ {LABELS} ] }}\n'
BEST = """output { name: "label" data_type: TYPE_STRING dims: [ 5 ] }
output { name: "score" data_type: TYPE_FP32 dims: [ 5 ] }
"""
TOKENIZE = {"step": "tokenize", "input": "text", "outputs": {"ids": "input_ids", "mask": "attention_mask"}, "file": "tokenizer.json",
            "pad_token": "[PAD]", "max_length": 128}
HEAD = {"step": "head", "input": "logits", "outputs": {"labels": "label", "scores": "score"}, "activation": "softmax", "top_k": 5,
        "labels": [f"label {index}" for index in range(LABELS)]}
MODELS = {"ids": ("", None), "tokenize": (TEXT + LOGITS, [TOKENIZE, {"step": "model"}]),
          "tokenize_head": (TEXT + BEST, [TOKENIZE, {"step": "model"}, HEAD])}


def write(repository, words):
    file, texts = network(words), json.dumps(tokenizer(words))
    for name, (config, steps) in MODELS.items():
        os.makedirs(f"{repository}/{name}/1")
        with open(f"{repository}/{name}/1/model.onnx", "wb") as out:
            out.write(file)
        with open(f"{repository}/{name}/config.pbtxt", "w") as out:
            out.write(f'backend: "onnxruntime"\nmax_batch_size: 8\n{config}')
        if steps:
            with open(f"{repository}/{name}/1/steps.json", "w") as out:
                json.dump({"steps": steps}, out)
            with open(f"{repository}/{name}/1/tokenizer.json", "w") as out:
                out.write(texts)


def request(inputs, outputs):
    """The body and the size of its JSON part: inputs are (name, datatype, shape, contents)."""
    header = {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(contents)}}
                         for name, datatype, shape, contents in inputs],
              "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs]}
    header = json.dumps(header).encode()
    return header + b"".join(contents for *_, contents in inputs), len(header)


def requests(words):
    chosen = RANDOM.sample(range(len(SPECIAL), 30_000), WORDS)
    text = " ".join(words[index] for index in chosen).encode()
    ids = [2, *chosen, 3]
    longs = lambda values: struct.pack(f"<{len(values)}q", *values)
    tensors = [("input_ids", "INT64", [1, len(ids)], longs(ids)), ("attention_mask", "INT64", [1, len(ids)], longs([1] * len(ids)))]
    text = [("text", "BYTES", [1, 1], struct.pack("<I", len(text)) + text)]
    return {"ids": request(tensors, ["logits"]), "tokenize": request(text, ["logits"]),
            "tokenize_head": request(text, ["label", "score"])}


def cpu(server):
    with open(f"/proc/{server}/schedstat") as file:
        own = int(file.read().split()[0])
    tasks = 0
    for thread in os.listdir(f"/proc/{server}/task"):
        with open(f"/proc/{server}/task/{thread}/schedstat") as file:
            tasks += int(file.read().split()[0])
    return max(own, tasks) / 1e3


def measure(server, name, body, size, count):
    """Microseconds of p50, and of CPU for each request."""
    connection, times, before = http.client.HTTPConnection("127.0.0.1", PORT), [], cpu(server)
    headers = {"Inference-Header-Content-Length": str(size)}
    for _ in range(count):
        begun = time.perf_counter()
        connection.request("POST", f"/v2/models/{name}/infer", body, headers)
        response = connection.getresponse()
        answer = response.read()
        times.append(time.perf_counter() - begun)
        if response.status != 200:
            sys.exit(f"{name} answers {response.status}: {answer}")
    connection.close()
    return 1e6 * statistics.median(times), (cpu(server) - before) / count


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
    program, rounds = sys.argv[1], int((sys.argv[2:] or ["9"])[0])
    words = vocabulary()
    with tempfile.TemporaryDirectory() as repository:
        write(repository, words)
        ports = [f"--{name}-port={PORT + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        server = subprocess.Popen(["taskset", "-c", "0", program, "serve", repository, "--log-info=false", *ports])
        try:
            wait_ready(server)
            os.sched_setaffinity(0, {1})
            asked, found = requests(words), {name: [] for name in MODELS}
            for name in MODELS:
                measure(server.pid, name, *asked[name], 200)
            for _ in range(rounds):
                for name in MODELS:
                    found[name].append(measure(server.pid, name, *asked[name], REQUESTS))
            for column, what in enumerate(("p50", "CPU")):
                for name, rows in found.items():
                    values = [row[column] for row in rows]
                    more = [value - ids[column] for value, ids in zip(values, found["ids"])]
                    said = f"{what} {name}: {statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f}) µs"
                    if name != "ids":
                        said += f"; on top of the model {statistics.median(more):.1f} ({min(more):.1f}–{max(more):.1f}) µs"
                    print(said, flush=True)
        finally:
            server.terminate()
            server.wait()


main()
