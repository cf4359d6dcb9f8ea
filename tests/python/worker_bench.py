"""Cost of the process of a Python model: CPU time of the process per request, for models that do next to nothing.

    python tests/python/worker_bench.py [--python INTERPRETER] [case…]

The server's end is `worker/server.py`; it sends the same message again and again, so its own cost is left out.
"""

import argparse
import os
import struct
import sys
import tempfile
import time

import numpy as np

import worker.server
from worker.server import BLS_CALL, Server, text_tensor

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]))
        return responses
"""

TWO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            outputs = [pb_utils.Tensor("OUT", a), pb_utils.Tensor("SUM", b)]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

BLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            call = pb_utils.InferenceRequest(model_name="other", inputs=[tensor], requested_output_names=["OUT"])
            output = pb_utils.get_output_tensor_by_name(call.exec(), "OUT")
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""

SENDER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            tensor = pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
            sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

TWICE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * 2)]) for array in arrays]
"""

IN_PLACE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            output = pb_utils.Tensor.empty("OUT", array.shape, array.dtype)
            np.multiply(array, 2, out=output.as_numpy())
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""


def tensors(*names, datatype):
    return [{"name": name, "data_type": datatype} for name in names]


def config(datatype):
    inputs, outputs = tensors("IN", "B", datatype=datatype), tensors("OUT", "SUM", datatype=datatype)
    return {"name": "m", "max_batch_size": 0, "input": inputs, "output": outputs}


SMALL = np.arange(16, dtype=np.float32).reshape(1, 16)
LARGE = np.zeros((1, 4 << 20), np.float32)
WORDS = [b"word%d" % (number % 997) for number in range(1000)]
DETAILS = worker.server.details(id="request-17", parameters='{"top_k":4}')

# Name, model, datatype, one request, requests of a batch, divisor (the unit of the result).
CASES = [
    ("64 small requests, per request", MODEL, "FP32", {"IN": SMALL}, 64, 64),
    ("64 small requests with an id and parameters", MODEL, "FP32", ({"IN": SMALL}, DETAILS), 64, 64),
    ("64 requests of two inputs and outputs", TWO, "FP32", {"IN": SMALL, "B": SMALL}, 64, 64),
    ("1 small request", MODEL, "FP32", {"IN": SMALL}, 1, 1),
    ("602 kB in and out", MODEL, "FP32", {"IN": np.zeros((1, 3, 224, 224), np.float32)}, 1, 1),
    ("16 MiB in and twice out, copied", TWICE, "FP32", {"IN": LARGE}, 1, 1),
    ("16 MiB in and twice out, in place", IN_PLACE, "FP32", {"IN": LARGE}, 1, 1),
    ("1 small request, in place", IN_PLACE, "FP32", {"IN": SMALL}, 1, 1),
    ("1000 strings in and out, per string", MODEL, "BYTES", {"IN": text_tensor((1000,), *WORDS)}, 1, 1000),
    (
        "1000 strings of one length, per string",
        MODEL,
        "BYTES",
        {"IN": text_tensor((1000,), *[b"12345678"] * 1000)},
        1,
        1000,
    ),
    ("1 string", MODEL, "BYTES", {"IN": text_tensor((1, 1), b"a question")}, 1, 1),
    ("a call to another model", BLS, "FP32", {"IN": SMALL}, 1, 1),
    ("two messages of a response sender", SENDER, "FP32", {"IN": SMALL}, 1, 1),
]


class Recorder:
    """Stands for the main socket, to get the bytes of one message."""

    def sendall(self, data):
        self.data = data


def cpu_time(process):
    """CPU time of a process in seconds: the clock of another process (`clock_getcpuclockid`)."""
    return time.clock_gettime((~process.pid << 3) | 2)


def read(side, size):
    data = b""
    while len(data) < size:
        data += side.recv(size - len(data))
    return data


class Driver:
    """Sends one batch again and again."""

    def __init__(self, server, request, count):
        self.server = server
        recorder, main = Recorder(), server.main
        server.main = recorder
        server.send_execute(*[request] * count)
        server.main = main
        # The count of released slots follows the batch and its span.
        at = 5 + 8 + 22
        self.head, self.tail = recorder.data[5:at], recorder.data[at + 4 :]
        self.slots = []
        self.call_reply = None

    def run(self):
        body = self.head + struct.pack("<I", len(self.slots)) + b"".join(self.slots) + self.tail
        self.slots = []
        self.server.main.sendall(struct.pack("<IB", len(body) + 1, 2) + body)
        while True:
            size, kind = struct.unpack("<IB", read(self.server.main, 5))
            data = read(self.server.main, size - 1)
            self.slots.append(data[9:13])
            if kind == worker.server.RESPONSES:
                assert data[31] == 0, data[36:]
                if self.slots[-1] == bytes(4) and data[36] == 1:
                    # The one output is in a place of its own: its slot and its region are at the end.
                    self.slots[-1] = data[-6:-2]
                self.slots = [slot for slot in self.slots if slot != bytes(4)]
                return

    def run_call(self):
        """With one call to another model in it."""
        body = self.head + struct.pack("<I", len(self.slots)) + b"".join(self.slots) + self.tail
        self.server.main.sendall(struct.pack("<IB", len(body) + 1, 2) + body)
        size, kind = struct.unpack("<IB", read(self.server.aux, 5))
        while kind != BLS_CALL:
            read(self.server.aux, size - 1)
            size, kind = struct.unpack("<IB", read(self.server.aux, 5))
        call = self.server.read_call(worker.server.Reader(read(self.server.aux, size - 1)))
        if self.call_reply is None:
            recorder, aux = Recorder(), self.server.aux
            self.server.aux = recorder
            self.server.reply_call(call, [("OUT", SMALL)])
            self.server.aux = aux
            self.call_reply = recorder.data
        reply = self.call_reply[:5] + struct.pack("<Q", call.call) + self.call_reply[13:]
        self.server.aux.sendall(reply)
        size, kind = struct.unpack("<IB", read(self.server.main, 5))
        data = read(self.server.main, size - 1)
        assert kind == worker.server.RESPONSES and data[31] == 0, data
        self.slots = [data[9:13], struct.pack("<I", call.span[0])]
        self.server.response_slots.clear()


def measure(name, model, datatype, request, count, divisor, python, seconds):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m", "1", "model.py")
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(model)
        decoupled = model is SENDER
        with Server(path, config(datatype), python, (64 << 20, 64 << 20), decoupled=decoupled) as server:
            driver = Driver(server, request, count)
            run = driver.run_call if model is BLS else driver.run
            for _ in range(50):
                run()
            results = []
            for _ in range(5):
                rounds, began, used = 0, time.perf_counter(), cpu_time(server.process)
                while time.perf_counter() - began < seconds / 5:
                    run()
                    rounds += 1
                results.append((cpu_time(server.process) - used) / rounds / divisor * 1e6)
            print("%-46s %8.2f us" % (name, min(results)), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    for case in CASES:
        if not options.cases or any(word in case[0] for word in options.cases):
            measure(*case, options.python, options.seconds)


if __name__ == "__main__":
    main()
