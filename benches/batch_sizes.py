#!/usr/bin/env python3
"""Cost of batching a model, and the batch sizes that the server chooses by itself.

    python3 benches/batch_sizes.py target/release/deuteron MODEL.onnx INPUT:DATATYPE:DIMS OUTPUT:DATATYPE:DIMS [ROWS] [FLAGS ...]

The same file three times on one server, one instance each on core 0 and `deuteron bench` with eight clients on core 1: with
`dynamic_batching { }`, where the server learns the size of batches; with a delay of a microsecond, where batches have the
waiting requests, up to ROWS (8); and without batching. Six rounds in turns; microseconds a request as medians (least to
most), and the sizes that were chosen."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

KINDS = {
    "learned": "dynamic_batching { }",
    "largest": "dynamic_batching { max_queue_delay_microseconds: 1 }",
    "alone": "",
}
ROUNDS = 6


def tensor(field, text):
    name, datatype, dims = text.split(":")
    return f'{field} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]\n'


def main():
    binary, file, inputs, outputs = sys.argv[1:5]
    rows = int((sys.argv[5:] or [8])[0])
    with tempfile.TemporaryDirectory() as repository:
        for kind, batching in KINDS.items():
            os.makedirs(f"{repository}/{kind}/1")
            shutil.copy(file, f"{repository}/{kind}/1/model.onnx")
            with open(f"{repository}/{kind}/config.pbtxt", "w") as config:
                config.write(f'backend: "onnxruntime"\nmax_batch_size: {rows}\n{batching}\ninstance_group {{ count: 1 kind: KIND_CPU }}\n')
                config.write('parameters { key: "placement" value { string_value: "worker" } }\n')
                config.write(tensor("input", inputs) + tensor("output", outputs))
        ports = [f"--{name}-port={18_500 + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
        line = ["taskset", "-c", "0", binary, "serve", repository, "--shards=1", "--log-info=false", *ports, *sys.argv[6:]]
        server = subprocess.Popen(line)
        for _ in range(600):
            try:
                urllib.request.urlopen("http://127.0.0.1:18500/v2/health/ready").read()
                break
            except OSError:
                time.sleep(0.05)
        times = {kind: [] for kind in KINDS}
        for turn in range(ROUNDS + 1):
            for kind in KINDS if turn % 2 else reversed(KINDS):
                bench = ["taskset", "-c", "1", binary, "bench", "-m", kind, "-u=127.0.0.1:18500", "--concurrency-range=8"]
                done = subprocess.run([*bench, "-p=3000", "--max-trials=1", "--format=json"], capture_output=True, text=True)
                result = json.loads(done.stdout.splitlines()[0])
                # The first turn learns the sizes.
                if turn > 0:
                    times[kind].append(1e6 / result["throughput"])
        metrics = urllib.request.urlopen("http://127.0.0.1:18502/metrics").read().decode()
        for kind, micros in times.items():
            print(f"{kind}: {statistics.median(micros):,.0f} µs ({min(micros):,.0f} to {max(micros):,.0f})")
        print("\n".join(re.findall(r"^deuteron_(?:batch_rows_chosen|row_seconds)\{.*$", metrics, re.M)))
        server.terminate()
        server.wait()


main()
