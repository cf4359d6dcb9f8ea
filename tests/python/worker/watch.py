"""What is told of the first batches of a model."""

import os

import numpy as np

import worker.server as ws
from worker.case import WorkerTest, X, model
from worker.server import text_tensor

# Uses a core for 3 ms: on each request, or on all at once.
ONE_BY_ONE = """
def execute(self, requests):
    responses = []
    for request in requests:
        x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        end = time.process_time() + 0.003
        while time.process_time() < end:
            pass
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
    return responses
"""
AT_ONCE = """
def execute(self, requests):
    inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
    end = time.process_time() + 0.003
    while time.process_time() < end:
        pass
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]) for x in inputs]
"""
BATCHING = {"max_batch_size": 8, "dynamic_batching": {}}

# Runs the text of its input for every batch.
RUN = """
def from_pretrained(path):
    return open(path).read()

class TritonPythonModel:
    def execute(self, requests):
        code = requests[0].inputs()[0].as_numpy()[0].decode()
        exec(code, {"open": open, "os": os, "self": self, "from_pretrained": from_pretrained})
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


class Watch(WorkerTest):
    """What is told of the first batches of a model."""

    def hints(self, server):
        """The lines of the log, with the place of each."""
        server.settle()
        found = []
        while server.received["aux"]:
            reader = server.expect("aux", ws.LOG)
            level, line = reader.take("BI")
            self.assertEqual(level, 1)
            found.append((os.path.basename(reader.str16()), line, reader.str32()))
        return found

    def test_requests_that_are_computed_one_by_one(self):
        server = self.serve(model(ONE_BY_ONE), config=BATCHING)
        for _ in range(3):
            server.execute({"IN": X})
        for count in (2, 3, 2):
            server.execute(*[{"IN": X}] * count)
        self.assertEqual(self.hints(server), [])
        server.execute(*[{"IN": X}] * 2)
        ((file, line, text),) = self.hints(server)
        self.assertEqual((file, line), ("model.py", 0))
        self.assertTrue(text.startswith(
            "hint: execute answered each request of a batch before it read the next one, in 4 batches of up to 3 requests: "
        ), text)
        for _ in range(20):
            server.execute(*[{"IN": X}] * 2)
        self.assertEqual(self.hints(server), [], "only once")

    def test_requests_that_are_computed_at_once_or_in_no_time_or_do_not_come_together(self):
        quick = ONE_BY_ONE.replace("0.003", "0")
        for body, config in [(AT_ONCE, BATCHING), (quick, BATCHING), (ONE_BY_ONE, {"max_batch_size": 8})]:
            server = self.serve(model(body), config=config)
            for _ in range(12):
                server.execute(*[{"IN": X}] * 3)
            self.assertEqual(self.hints(server), [])

    def run_batches(self, code, count=12):
        source = "import os\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n" + RUN
        server = self.serve(source, "IN:BYTES", "OUT:FP32", files=[("weights.bin", "weights")])
        code = code.replace("WEIGHTS", repr(os.path.join(server.version, "weights.bin")))
        for _ in range(count):
            self.assertIsNone(server.execute({"IN": text_tensor((1,), code.encode())}).text)
        return server, self.hints(server)

    def test_a_file_that_each_batch_reads(self):
        server, (found,) = self.run_batches("open(WEIGHTS)")
        file, line, text = found
        path = os.path.join(server.version, "weights.bin")
        want = "hint: execute opens '" + path + "' in each batch (8 of 8). Load it in initialize."
        self.assertEqual((file, line > 0, text), ("model.py", True, want))
        _, ((_, _, text),) = self.run_batches("from_pretrained(WEIGHTS)")
        self.assertIn("in each batch (8 of 8), by from_pretrained. Load it in initialize.", text)
        self.assertEqual(len(self.run_batches("os.close(os.open(WEIGHTS, os.O_RDONLY))")[1]), 1)

    def test_files_that_are_no_finding(self):
        for code in [
            "hasattr(self, 'x') or setattr(self, 'x', open(WEIGHTS).read())",
            "open(WEIGHTS + '.log', 'a')",
            "os.close(os.open(WEIGHTS, os.O_RDWR))",
            "open('/proc/self/stat')",
            "os.fdopen(os.dup(1)).close()",
        ]:
            with self.subTest(code=code):
                self.assertEqual(self.run_batches(code)[1], [])
        # Too few batches.
        self.assertEqual(self.run_batches("open(WEIGHTS)", 7)[1], [])

    def test_a_connection_that_each_batch_makes(self):
        code = "import socket\nlistener = socket.create_server(('127.0.0.1', 0)) if not hasattr(self, 'port') else None\n"
        code += "self.listener, self.port = (listener, listener.getsockname()[1]) if listener else (self.listener, self.port)\n"
        code += "socket.socket().connect(('127.0.0.1', self.port))"
        _, found = self.run_batches(code)
        texts = [text for _, _, text in found if "connects" in text]
        self.assertEqual(len(texts), 1, found)
        self.assertRegex(texts[0], r"hint: execute connects to 127\.0\.0\.1:\d+ in each batch \(8 of 8\)\. Connect in initialize")

    def test_an_exception_is_told_as_without_the_watch(self):
        server = self.serve(model("def execute(self, requests):\n    requests[0].inputs()\n    1 / 0"), config=BATCHING)
        first = server.execute(*[{"IN": X}] * 2).text
        for _ in range(20):
            server.execute(*[{"IN": X}] * 2)
        self.assertEqual(server.execute(*[{"IN": X}] * 2).text, first)
        self.assertNotIn("deuteron", first)
