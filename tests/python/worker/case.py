"""Shared by the tests of the process of a Python model: models, and a test case that starts servers."""

import os
import shutil
import sys
import tempfile
import unittest

import numpy as np

from worker.server import Server, text_tensor

PYTHON = os.environ.get("WORKER_PYTHON", sys.executable)

IMPORTS = """
import json
import os
import sys
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

"""

# Runs the Python text that is its input, and answers with the `repr` of its last line, or with the exception.
EVALUATE = (
    IMPORTS
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            names = {"pb": pb_utils, "np": np, "r": request, "model": self, "requests": requests, "json": json}
            before, _, last = code.rpartition("\\n")
            try:
                exec(before, names)
                result = repr(eval(last, names))
            except Exception as error:
                result = type(error).__name__ + ": " + str(error)
            names.clear()
            output = pb_utils.Tensor("TEXT", np.array([result.encode()], np.object_))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
)

# Answers with its inputs.
IDENTITY = (
    IMPORTS
    + """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = [pb_utils.Tensor("OUT" + t.name()[2:], t.as_numpy()) for t in request.inputs()]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
"""
)


def model(body):
    """A model whose class has this body."""
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return IMPORTS + "class TritonPythonModel:\n" + lines + "\n"


def tensors(text):
    """`A:FP32 B:BYTES` as in a configuration."""
    pairs = [pair.split(":") for pair in text.split()]
    return [{"name": name, "data_type": datatype, "dims": [-1]} for name, datatype in pairs]


X = np.arange(6, dtype=np.float32).reshape(2, 3)
PREFIX = "Failed to process the request(s) for model 'm_0_0', message: "


class WorkerTest(unittest.TestCase):
    maxDiff = None

    def serve(self, source, inputs="IN:FP32", outputs="OUT:FP32", files=(), name="model.py", config=None, server=Server, **settings):
        """A server whose process runs this source."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        version = os.path.join(folder, "m", "1")
        os.makedirs(version)
        for path, text in [(name, source), *files]:
            if text is not None:
                os.makedirs(os.path.dirname(os.path.join(version, path)), exist_ok=True)
                with open(os.path.join(version, path), "w") as file:
                    file.write(text)
        known = {"name": "m", "max_batch_size": 0, "input": tensors(inputs), "output": tensors(outputs)}
        known.update(config or {})
        settings.setdefault("python", PYTHON)
        server = server(os.path.join(version, name), known, **settings)
        self.addCleanup(server.__exit__)
        server.version = version
        return server

    def evaluator(self, **settings):
        return self.serve(EVALUATE, "CODE:BYTES A:FP32 B:BYTES C:BF16", "TEXT:BYTES OUT:FP32", **settings)

    def evaluate(self, server, code, known=None, **inputs):
        """The value of a Python text in `execute`."""
        request = {"CODE": text_tensor((1,), code.encode())}
        request.update(inputs)
        return server.ask(request, known)["TEXT"][0].decode()

    def check(self, server, table, **options):
        for code, wanted in table:
            with self.subTest(code=code):
                self.assertEqual(self.evaluate(server, code, **options), wanted)

    def failure(self, server, request=None):
        """The text with which a batch of one request fails."""
        return server.execute(request or {"IN": X}).text
