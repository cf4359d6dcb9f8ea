"""A server on a repository, and its answers: what the scripts beside this one share."""

import atexit
import http.client
import json
import pathlib
import socket
import subprocess
import time

import numpy as np

DATATYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip


class Refused(Exception):
    """An error of the server's."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, program, repository, *flags):
        self.port = free_port()
        ports = [f"--http-port={self.port}", f"--grpc-port={free_port()}", f"--metrics-port={free_port()}"]
        self.log = pathlib.Path(repository).parent / f"log-{self.port}"
        command = [program, "serve", str(repository), "--shards=1", "--strict-readiness=false", "--exit-on-error=false"]
        self.process = subprocess.Popen([*command, *ports, *flags], stdout=self.log.open("wb"), stderr=subprocess.STDOUT)
        # A check that fails leaves no server behind.
        atexit.register(self.process.kill)
        for _ in range(1200):
            if self.process.poll() is not None:
                break
            try:
                if self.ask("GET", "/v2/health/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"the server is not ready:\n{self.log.read_text()}")

    def ask(self, method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read(), response.headers

    def get(self, path):
        return json.loads(self.ask("GET", path)[1])

    def reason(self, model):
        """Why a model is not ready."""
        index = json.loads(self.ask("POST", "/v2/repository/index")[1])
        return next(entry.get("reason", "") for entry in index if entry["name"] == model)

    def engine(self, model):
        return self.get(f"/v2/models/{model}/config")["parameters"]["served_engine"]["string_value"]

    def infer(self, model, inputs):
        """Asks for all outputs; `inputs` are arrays, or (datatype, array), by name."""
        described, parts = [], []
        for name, value in inputs.items():
            datatype, array = value if isinstance(value, tuple) else (None, np.asarray(value))
            if datatype is None:
                datatype = next(known for known, dtype in DATATYPES.items() if array.dtype == dtype)
            raw = encode(datatype, array)
            described.append({"name": name, "shape": list(array.shape), "datatype": datatype,
                              "parameters": {"binary_data_size": len(raw)}})  # fmt: skip
            parts.append(raw)
        head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, body, headers = self.ask("POST", f"/v2/models/{model}/infer", head + b"".join(parts), headers)
        if status != 200:
            raise Refused(f"{status} {json.loads(body)['error']}")
        size = int(headers["Inference-Header-Content-Length"])
        answer, at, outputs = json.loads(body[:size]), size, {}
        for output in answer["outputs"]:
            size = output["parameters"]["binary_data_size"]
            outputs[output["name"]] = decode(output["datatype"], output["shape"], body[at : at + size])
            at += size
        return outputs

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def encode(datatype, array):
    if datatype == "BYTES":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1)]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return np.ascontiguousarray(array).tobytes()


def decode(datatype, shape, raw):
    if datatype == "BYTES":
        texts, at = [], 0
        while at < len(raw):
            size = int.from_bytes(raw[at : at + 4], "little")
            texts.append(raw[at + 4 : at + 4 + size])
            at += 4 + size
        return np.array(texts, dtype=np.object_).reshape(shape)
    dtype = np.uint16 if datatype == "BF16" else DATATYPES[datatype]
    return np.frombuffer(raw, dtype).reshape(shape)


def write(repository, name, config=""):
    """Makes a model's folders and returns that of its version."""
    version = pathlib.Path(repository) / name / "1"
    version.mkdir(parents=True)
    if config:
        (version.parent / "config.pbtxt").write_text(config)
    return version
