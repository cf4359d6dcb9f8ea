"""Tests of the process of a Python model, `src/backend/python/worker`, against a server in Python (`worker_server.py`).

Run with any Python that has numpy: `python tests/python/worker_test.py`. `WORKER_PYTHON` names the interpreter of the
process if it is to be another one. The texts that are compared are Triton's.
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

import worker_server as ws
from worker_server import Server, details, text_tensor

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

    def serve(self, source, inputs="IN:FP32", outputs="OUT:FP32", files=(), name="model.py", config=None, **settings):
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
        server = Server(os.path.join(version, name), known, **settings)
        self.addCleanup(server.__exit__)
        server.version = version
        return server

    def evaluator(self, **settings):
        return self.serve(EVALUATE, "CODE:BYTES A:FP32 B:BYTES C:BF16", "TEXT:BYTES OUT:FP32", **settings)

    def evaluate(self, server, code, known=None, **inputs):
        """What Python text gives in `execute`."""
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


class Imports(WorkerTest):
    """Section 1.1 of the contract: where a model is, how it is imported."""

    def test_the_module_has_tritons_name_and_finds_its_neighbours(self):
        source = model(
            """
def execute(self, requests):
    facts = [__name__, __file__, __package__, first.NAME, second.NAME, os.getcwd(), sys.argv, sys.path[-2:]]
    text = np.array([json.dumps(facts).encode()], object)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])]
"""
        )
        source = "from .first import NAME\nfrom . import first\nimport second\n" + source
        files = [("first.py", "NAME = __name__"), ("second.py", "NAME = __name__")]
        server = self.serve(source, "IN:FP32", "OUT:BYTES", files)
        facts = json.loads(server.ask({"IN": X})["OUT"][0])
        path = server.version
        wanted = ["1.model", path + "/model.py", "1", "1.first", "second", os.getcwd(), [""], [path, os.path.dirname(path)]]
        self.assertEqual(facts, wanted)

    def test_a_file_of_another_name(self):
        server = self.serve(IDENTITY, name="other.py")
        np.testing.assert_array_equal(server.ask({"IN": X})["OUT"], X)

    def test_the_file_is_not_taken_from_elsewhere(self):
        # The working directory is on the path of Python, and may have a directory `1` of its own.
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        os.makedirs(folder + "/1")
        with open(folder + "/1/model.py", "w") as file:
            file.write("raise ValueError('the wrong model')")
        before = os.getcwd()
        os.chdir(folder)
        try:
            server = self.serve(IDENTITY)
        finally:
            os.chdir(before)
        np.testing.assert_array_equal(server.ask({"IN": X})["OUT"], X)

    def test_a_version_directory_may_be_a_package(self):
        source = "from . import VALUE\n" + model("def initialize(self, args): print(VALUE)")
        server = self.serve(source, files=[("__init__.py", "VALUE = 'of the package'")])
        self.assertEqual(server.finalize()[0], "of the package\n")

    def test_a_python_based_backend_is_imported_as_model(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        with open(folder + "/model.py", "w") as file:
            file.write(
                "import part\n"
                + model("def initialize(self, args): print(__name__, part.VALUE, pb_utils.get_model_dir())")
            )
        with open(folder + "/part.py", "w") as file:
            file.write("VALUE = 7")
        server = self.serve(
            None, model_file=folder + "/model.py", module_name="model", backend_directory=folder, files=[("data", "")]
        )
        self.assertEqual(server.finalize()[0], "model 7 " + server.version + "\n")

    def check_refused(self, source, wanted, **options):
        server = self.serve(source, start=False, **options)
        text = server.expect("main", ws.FAILED).str32()
        self.assertEqual(text.replace(server.version, "DIR"), wanted)

    def test_a_missing_file_is_refused(self):
        self.check_refused(None, "Python model file not found in 'DIR/model.py'")

    def test_a_file_that_is_no_python_is_refused(self):
        self.check_refused("", "Model name must end with '.py'. Model name is \"model.txt\".", name="model.txt")

    def test_a_missing_class_is_refused(self):
        self.check_refused("", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'")

    def test_an_import_that_fails_is_told_with_its_frames(self):
        server = self.serve("import no_such_module_at_all", start=False)
        text = server.expect("main", ws.FAILED).str32().replace(server.version, "DIR")
        head = "ModuleNotFoundError: No module named 'no_such_module_at_all'\n\nAt:\n  DIR/model.py(1): <module>\n  <frozen "
        self.assertTrue(text.startswith(head), text)
        self.assertNotIn("deuteron", text)
        self.assertTrue(text.endswith(": _find_and_load\n"), text)

    def test_the_native_half_can_be_imported(self):
        server = self.evaluator()
        code = "import c_python_backend_utils as c\n[getattr(c, n) is getattr(pb, n) for n in %r]"
        names = ["Tensor", "InferenceRequest", "InferenceResponse", "MetricFamily", "load_model", "TritonError", "Logger"]
        self.assertEqual(self.evaluate(server, code % names), str([True] * len(names)))
        self.assertEqual(self.evaluate(server, "pb.np, pb.json, pb.struct"), self.evaluate(
            server, "import numpy, json, struct\nnumpy, json, struct"
        ))
        self.assertEqual(self.evaluate(server, "[n for n in pb.__all__ if not hasattr(pb, n)]"), "[]")
        self.assertEqual(self.evaluate(server, "pb.nothing"), (
            "AttributeError: module 'triton_python_backend_utils' has no attribute 'nothing'"
        ))


class Life(WorkerTest):
    """Section 1.2: the steps of a model's life."""

    def test_initialize_gets_seven_texts(self):
        server = self.serve(model("def initialize(self, args): print(json.dumps(args))"))
        args = json.loads(server.finalize()[0])
        self.assertEqual(sorted(args), sorted(server.settings["args"]))
        self.assertEqual(args, server.settings["args"])
        self.assertTrue(all(type(value) is str for value in args.values()))

    def test_the_server_is_told_what_the_model_has(self):
        facts = self.serve(model("async def execute(self, requests): pass\ndef is_ready(self): return True")).facts
        self.assertEqual((facts["is_ready"], facts["execute"], facts["is_async"]), (True, True, True))
        facts = self.serve(model("pass")).facts
        self.assertEqual((facts["is_ready"], facts["execute"], facts["is_async"]), (False, False, False))
        self.assertEqual(sorted(facts), ["execute", "is_async", "is_ready", "numpy", "pid", "python"])

    def test_a_batch_is_a_list_of_separate_requests_on_the_main_thread(self):
        source = model(
            """
def execute(self, requests):
    assert threading.current_thread() is threading.main_thread()
    count = np.array([len(requests)], np.int32)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", count)]) for request in requests]
"""
        )
        server = self.serve(source)
        responses = server.execute(*[{"IN": X}] * 5).responses
        self.assertEqual([int(response.outputs[0][1][0]) for response in responses], [5] * 5)

    def test_the_number_of_the_batch_that_runs_is_in_the_first_region(self):
        server = self.serve(model("def execute(self, requests): time.sleep(0.2); return [None]"))
        header = server.response_regions[0].map
        self.assertEqual(header[:8], bytes(8))
        number = server.send_execute({"IN": X})
        server.wait_until(lambda: struct.unpack("<Q", header[:8])[0] == number, 5)
        self.assertFalse(server.received["main"])

    def test_a_coroutine_is_waited_for(self):
        source = model(
            """
async def execute(self, requests):
    import asyncio
    await asyncio.sleep(0.01)
    name = threading.current_thread() is threading.main_thread()
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([name]))]) for request in requests]
"""
        )
        server = self.serve(source)
        for _ in range(3):
            self.assertEqual(server.ask({"IN": X})["OUT"].tolist(), [False])

    def test_a_coroutine_that_fails(self):
        server = self.serve(model("async def execute(self, requests):\n    raise ValueError('boom')"))
        text = self.failure(server).replace(server.version, "DIR")
        # From Python 3.12 on the frames of asyncio follow, as they do in Triton.
        self.assertTrue(text.startswith(PREFIX + "ValueError: boom\n\nAt:\n  DIR/model.py(12): execute\n"), text)

    def test_a_decoupled_coroutine_is_not_waited_for(self):
        source = model(
            """
async def execute(self, requests):
    import asyncio
    senders = [request.get_response_sender() for request in requests]
    values = [request.inputs()[0].as_numpy() for request in requests]
    del requests
    await asyncio.sleep(0.1)
    for sender, value in zip(senders, values):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]), 1)
"""
        )
        server = self.serve(source, decoupled=True)
        for number in range(2):
            responses = server.execute({"IN": X + number})
            self.assertEqual([response.kind for response in responses.responses], [0])
            self.assertFalse(responses.inputs_free)
        self.assertEqual(len(server.slots), 2)
        for number in range(2):
            sent = server.sent()
            self.assertEqual((sent.request, sent.flags), (number + 1, 1))
            np.testing.assert_array_equal(sent.response.outputs[0][1], X + number)
        server.wait_until(lambda: not server.slots)

    def test_a_decoupled_coroutine_that_fails_is_logged_and_its_requests_fail(self):
        source = model("async def execute(self, requests):\n    raise ValueError('boom')")
        server = self.serve(source, decoupled=True)
        self.assertEqual([response.kind for response in server.execute({"IN": X}).responses], [0])
        sent = server.sent()
        self.assertEqual((sent.flags, sent.response.kind, sent.response.code), (1, 2, 1))
        self.assertTrue(sent.response.text.startswith(PREFIX + "ValueError: boom"), sent.response.text)
        log = server.expect("aux", ws.LOG)
        self.assertEqual(log.take("B"), 2)
        self.assertIn(b"Traceback (most recent call last)", log.body)

    def test_finalize_is_called_and_may_fail(self):
        server = self.serve(model("def finalize(self):\n    print('bye')\n    raise ValueError('boom')"))
        out, _ = server.finalize()
        self.assertEqual((out, server.process.returncode), ("bye\n", 0))
        self.assertIn(b"ValueError: boom", server.expect("aux", ws.LOG).body)

    def test_is_ready_is_answered_while_execute_runs(self):
        source = model(
            """
answers = [True, False, 7, ValueError("boom")]
def is_ready(self):
    answer = self.answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer
def execute(self, requests):
    time.sleep(1)
    return [None]
"""
        )
        server = self.serve(source)
        server.send_execute({"IN": X})
        found = []
        for ask in range(4):
            server.send_aux(ws.IS_READY, struct.pack("<Q", ask))
            reader = server.expect("aux", ws.READY)
            self.assertEqual(reader.take("Q"), ask)
            found.append((reader.take("B"), reader.str32().partition("\n")[0]))
        self.assertFalse(server.received["main"], "execute has returned")
        wanted = [(1, ""), (0, ""), (2, "is_ready() must return a boolean value"), (2, "ValueError: boom")]
        self.assertEqual(found, wanted)

    def test_is_ready_may_be_a_coroutine(self):
        server = self.serve(model("async def is_ready(self): return threading.current_thread().daemon"))
        server.send_aux(ws.IS_READY, struct.pack("<Q", 5))
        self.assertEqual(server.expect("aux", ws.READY).take("QB"), (5, 1))

    def test_signals_are_ignored_but_not_by_programs_that_the_model_starts(self):
        source = model(
            """
def execute(self, requests):
    import subprocess
    child = subprocess.Popen(["sleep", "30"])
    child.terminate()
    code = np.array([child.wait()], np.int32)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", code)])]
"""
        )
        server = self.serve(source)
        for number in (signal.SIGINT, signal.SIGTERM):
            server.process.send_signal(number)
        self.assertEqual(server.ask({"IN": X})["OUT"].tolist(), [-signal.SIGTERM])

    def test_it_ends_at_once_when_the_socket_closes(self):
        server = self.serve(model("def finalize(self): print('not called')"))
        server.main.close()
        self.assertEqual(server.process.wait(5), 0)
        self.assertEqual(server.process.stdout.read(), b"")

    def test_standard_input_is_empty_and_output_comes_at_once(self):
        server = self.serve(model("def initialize(self, args): print('read', repr(sys.stdin.read()))"))
        self.assertEqual(server.process.stdout.readline(), b"read ''\n")

    def test_children_of_a_model_have_no_sockets(self):
        source = model(
            """
def execute(self, requests):
    sender = requests[0].get_response_sender()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        links = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)]
        try:
            sender.send(flags=1, response=pb_utils.InferenceResponse([]))
            text = "sent"
        except Exception as error:
            text = type(error).__name__
        pb_utils.Logger.log_info("from the child")
        del sender, requests
        os.write(writer, (text + str([link for link in links if link.startswith("socket")])).encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = np.array([os.read(reader, 4096)], object)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])]
"""
        )
        server = self.serve(source, outputs="OUT:BYTES")
        self.assertEqual(server.ask({"IN": X})["OUT"][0], b"ServerGone[]")
        server.settle()
        self.assertFalse(server.received["aux"])

    def test_multiprocessing_works(self):
        source = (
            "def double(x): return 2 * x\n"
            + model(
                """
def execute(self, requests):
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        values = pool.map(double, [1, 2, 3])
    output = pb_utils.Tensor("OUT", np.array(values, np.int64))
    return [pb_utils.InferenceResponse([output])]
"""
            )
        )
        if PYTHON != sys.executable:
            self.skipTest("once is enough")
        self.assertEqual(self.serve(source).ask({"IN": X})["OUT"].tolist(), [2, 4, 6])

    def test_all_interpreters_of_the_machine(self):
        # The real thing on each python3 that has numpy.
        found = set()
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            for name in ["python3"] + ["python3.%d" % minor for minor in range(8, 20)]:
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    found.add(path)
        ran = []
        for path in sorted(found):
            program = "import sys, numpy; print(sys.version_info >= (3, 8), sys.executable, numpy.__version__)"
            output = subprocess.run([path, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if output.returncode == 0 and output.stdout.startswith(b"True"):
                with self.subTest(python=path):
                    server = self.serve(IDENTITY, "IN:FP32 INB:BYTES", "OUT:FP32 OUTB:BYTES", python=path)
                    for _ in range(2):
                        outputs = server.ask({"IN": X, "INB": text_tensor((2,), b"a", b"\xff\0")})
                        np.testing.assert_array_equal(outputs["OUT"], X)
                        self.assertEqual(outputs["OUTB"].tolist(), [b"a", b"\xff\0"])
                    self.assertFalse(server.slots)
                    server.finalize()
                    ran.append(output.stdout.split()[1:])
        print("ran with", ran)


class Returns(WorkerTest):
    """Section 1.3: what execute may return, and what the client sees."""

    def returned(self, expression, **options):
        return self.serve(model("def execute(self, requests):\n    " + expression), **options)

    def test_responses_come_in_order_with_the_wanted_outputs_only(self):
        source = model(
            """
def execute(self, requests):
    responses = []
    for request in requests:
        x = request.inputs()[0].as_numpy()
        names = ["B", "unknown", "A"]
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, x + len(name)) for name in names]))
    return responses
"""
        )
        server = self.serve(source, outputs="A:FP32 B:FP32")
        found = server.execute(({"IN": X}, None, ["A"]), {"IN": X + 10}, ({"IN": X}, None, [])).responses
        names = [[name for name, _ in response.outputs] for response in found]
        self.assertEqual(names, [["A"], ["B", "A"], []])
        self.assertEqual([response.kind for response in found], [1, 1, 1])
        np.testing.assert_array_equal(found[1].outputs[1][1], X + 11)

    def test_datatype_and_shape_pass_unchecked(self):
        server = self.returned(
            "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.arange(3, dtype=np.float64))])]"
        )
        output = server.ask({"IN": X})["OUT"]
        self.assertEqual((output.dtype, output.tolist()), (np.float64, [0, 1, 2]))

    def test_an_error_fails_its_request_alone(self):
        server = self.returned(
            "return [pb_utils.InferenceResponse([], pb_utils.TritonError('no', code)) for code in "
            "[pb_utils.TritonError.INVALID_ARG, pb_utils.TritonError.CANCELLED]]"
            " + [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.ones(1))], error=pb_utils.TritonError('bad')),"
            " pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.ones(1))])]"
        )
        found = server.execute(*[{"IN": X}] * 4).responses
        self.assertEqual([(r.kind, r.code, r.text) for r in found], [(2, 3, "no"), (2, 7, "no"), (2, 1, "bad"), (1, 0, "")])

    def test_an_exception_fails_the_batch_with_its_frames(self):
        source = IMPORTS + "def deep(x):\n    raise ValueError('boom')\n" + "class TritonPythonModel:\n"
        source += "    def execute(self, requests):\n        deep(1)\n"
        server = self.serve(source)
        text = server.execute({"IN": X}, {"IN": X}).text.replace(server.version, "DIR")
        self.assertEqual(
            text, PREFIX + "ValueError: boom\n\nAt:\n  DIR/model.py(11): deep\n  DIR/model.py(14): execute\n"
        )
        self.assertFalse(server.slots)

    def test_other_exceptions(self):
        for statement, wanted in [
            ("sys.exit(3)", "SystemExit: 3"),
            ("raise KeyboardInterrupt()", "KeyboardInterrupt: <EMPTY MESSAGE>"),
            ("assert False", "AssertionError: <EMPTY MESSAGE>"),
            ("raise KeyError('x')", "KeyError: 'x'"),
            ("raise pb_utils.TritonModelException('mine')", "TritonModelException: mine"),
            ("pb_utils.Tensor('', np.ones(1))", "TritonModelException: Tensor name cannot be an empty string."),
            ("raise ValueError('\\ud800')", "ValueError: \\ud800"),
            ("json.loads('{')", None),
        ]:
            with self.subTest(statement=statement):
                server = self.returned(statement)
                text = self.failure(server)
                self.assertTrue(text.startswith(PREFIX + (wanted or "JSONDecodeError: ")), text)
                self.assertIn("\n\nAt:\n", text)
                self.assertTrue(text.endswith("/model.py(12): execute\n"), text)
                self.assertNotIn("deuteron", text)
                # It goes on.
                self.assertEqual(self.failure(server), text)

    def test_a_wrong_number_of_responses(self):
        text = self.failure(self.returned("return []"))
        self.assertEqual(text, PREFIX + (
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
        ))

    def test_what_is_no_list(self):
        text = self.failure(self.returned("return ()"))
        self.assertEqual(text, PREFIX + "Expected a list in the execute return, found type '<class 'tuple'>'.")

    def test_a_wrong_element(self):
        text = self.failure(self.returned("return [5]"))
        self.assertEqual(text, PREFIX + (
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
        ))

    def test_none_without_a_sender_is_an_error(self):
        for expression in ("return None", "return [None]", "requests[0].get_response_sender(); return"):
            with self.subTest(expression=expression):
                server = self.returned(expression)
                (response,) = server.execute({"IN": X}).responses
                self.assertEqual((response.kind, response.code), (2, 1))
                self.assertTrue(response.text.startswith(PREFIX + "the model gave no response"), response.text)
                server.settle()
                self.assertFalse(server.received["main"])

    def test_none_beside_a_response(self):
        server = self.returned("return [None, pb_utils.InferenceResponse([])]")
        self.assertEqual([response.kind for response in server.execute({"IN": X}, {"IN": X}).responses], [2, 1])

    def test_decoupled_must_return_none(self):
        for value in ("[]", "[None]", "5"):
            server = self.returned("self.kept = requests[0].get_response_sender(); return " + value, decoupled=True)
            text = self.failure(server)
            self.assertEqual(text, PREFIX + (
                "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."
            ))

    def test_all_senders_are_closed_when_a_batch_fails(self):
        source = model(
            """
kept = None
def execute(self, requests):
    if self.kept is not None:
        try:
            self.kept.send(pb_utils.InferenceResponse([]))
        except pb_utils.TritonModelException as error:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
    self.kept = requests[0].get_response_sender()
    raise ValueError("boom")
"""
        )
        server = self.serve(source)
        self.failure(server)
        (response,) = server.execute({"IN": X}).responses
        self.assertEqual(response.text, "Unable to send response. Response sender has been closed.")

    def test_raising_in_initialize(self):
        server = self.serve(model("def initialize(self, args):\n    raise ValueError('boom')"), start=False)
        text = server.expect("main", ws.FAILED).str32().replace(server.version, "DIR")
        self.assertEqual(text, "ValueError: boom\n\nAt:\n  DIR/model.py(12): initialize\n")
        server.finalize()

    def test_without_execute(self):
        server = self.serve(model("pass"))
        text = self.failure(server).replace(server.version, "DIR")
        self.assertEqual(text, PREFIX + "Python model DIR/model.py does not implement `execute` method.")


class Tensors(WorkerTest):
    """Section 1.4: tensors in both directions."""

    def test_all_datatypes_and_shapes(self):
        names = [name for name in ws.CODES if name != "BF16"]
        server = self.serve(
            IDENTITY, " ".join("IN%s:%s" % (n, n) for n in names), " ".join("OUT%s:%s" % (n, n) for n in names)
        )
        for shape in [(), (1,), (0,), (2, 0, 3), (2, 3), (1, 2, 3, 4, 5, 6), (7,) * 3]:
            request = {}
            for name in names:
                if name == "BYTES":
                    count = int(np.prod(shape))
                    request["INBYTES"] = text_tensor(shape, *[b"x" * (i % 300) for i in range(count)])
                else:
                    values = np.arange(int(np.prod(shape))).reshape(shape) % 7
                    request["IN" + name] = values.astype(ws.DTYPES[ws.CODES[name]])
            for _ in range(2):
                outputs = server.ask(request)
                self.assertEqual(len(outputs), 13)
                for name, output in outputs.items():
                    wanted = request["IN" + name[3:]]
                    self.assertEqual(output.shape, shape)
                    if name == "OUTBYTES":
                        self.assertEqual(output.ravel().tolist(), ws.strings(wanted.data))
                    else:
                        self.assertEqual(output.dtype, wanted.dtype)
                        np.testing.assert_array_equal(output, wanted)
        self.assertFalse(server.slots)

    def test_inputs_are_writeable_aligned_views(self):
        server = self.evaluator()
        code = "a = r.inputs()[1].as_numpy()\na[0, 0] = 99\n"
        code += "a.flags.writeable, a.flags.owndata, a.ctypes.data % 64, type(a).__name__, r.inputs()[1].as_numpy() is a"
        self.assertEqual(self.evaluate(server, code, A=X), "(True, False, 0, 'ndarray', True)")
        # The memory is the server's own.
        self.assertIn(99.0, np.frombuffer(server.request_regions[0].map, np.float32)[:64].tolist())

    def test_methods_of_a_tensor(self):
        server = self.evaluator()
        tensor = "t = pb.Tensor('T', np.zeros((2, 3), np.int8))\n"
        self.check(server, [
            (tensor + "t.name(), t.shape(), type(t.shape()), t.is_cpu(), t.as_numpy().dtype", (
                "('T', [2, 3], <class 'list'>, True, dtype('int8'))"
            )),
            (tensor + "type(t)", "<class 'c_python_backend_utils.Tensor'>"),
            (tensor + "t.x = 1", "SyntaxError: invalid syntax (<string>, line 1)"),
            (tensor + "setattr(t, 'x', 1)", self.evaluate(server, tensor + "setattr(t, 'x', 1)")),
            (tensor + "t.__dlpack_device__()", "(1, 0)"),
            ("[t.shape() for t in r.inputs()]", "[[1], [2, 3]]"),
        ], A=X)
        self.assertTrue(self.evaluate(server, tensor + "setattr(t, 'x', 1)").startswith("AttributeError"))
        text = self.evaluate(server, tensor + "t.triton_dtype()")
        self.assertTrue(text.startswith("TypeError: Unable to convert function return value to a Python type!"), text)

    def test_wrong_arguments_of_a_tensor(self):
        server = self.evaluator()
        refused = "TypeError: __init__(): incompatible constructor arguments."
        for code in [
            "pb.Tensor('T', [1, 2])", "pb.Tensor('T', None)", "pb.Tensor(None, np.ones(1))", "pb.Tensor(5, np.ones(1))",
            "pb.Tensor('T', np.float32(1))", "pb.Tensor('T', b'x')",
        ]:
            self.assertTrue(self.evaluate(server, code).startswith(refused), code)
        for code in ["pb.Tensor('T')", "pb.Tensor(name='T', array=np.ones(1))", "pb.Tensor()"]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError: "), code)
        unsupported = "TritonModelException: NumPy dtype is not supported."
        self.check(server, [
            ("pb.Tensor('', np.ones(1))", "TritonModelException: Tensor name cannot be an empty string."),
            ("pb.Tensor('T', np.array(['text']))", unsupported),
            ("pb.Tensor('T', np.ones(1, np.complex64))", unsupported),
            ("pb.Tensor('T', np.ones(1, '>f4'))", unsupported),
            ("pb.Tensor('T', np.ones(1, 'datetime64[s]'))", unsupported),
            ("pb.Tensor(b'T', np.ones(1, np.longlong)).name()", "'T'"),
        ])

    def test_strided_outputs(self):
        source = model(
            """
def execute(self, requests):
    x = requests[0].inputs()[0].as_numpy()
    big = np.arange(4 * 70000, dtype=np.float32).reshape(70000, 4)
    outputs = [("OUT", x.T), ("EVERY", x[:, ::2]), ("BACK", x[::-1, ::-1]), ("BIG", big.T), ("SAME", np.broadcast_to(x[0], (4, 3)))]
    return [pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs])]
"""
        )
        server = self.serve(source, outputs="OUT:FP32 EVERY:FP32 BACK:FP32 BIG:FP32 SAME:FP32", region_sizes=(1 << 20, 4 << 20))
        outputs = server.ask({"IN": X})
        big = np.arange(4 * 70000, dtype=np.float32).reshape(70000, 4)
        wanted = [X.T, X[:, ::2], X[::-1, ::-1], big.T, np.broadcast_to(X[0], (4, 3))]
        for output, value in zip(outputs.values(), wanted):
            np.testing.assert_array_equal(output, value)

    def test_strings(self):
        source = model(
            """
def execute(self, requests):
    inside = requests[0].inputs()[0].as_numpy()
    values = [
        ("TYPES", np.array([type(inside).__name__, inside.dtype.name, type(inside.flat[0]).__name__], object)),
        ("OBJECTS", np.array([b"\\xff\\0", "text \\u20ac", 5, None, 1.5], object)),
        ("FIXED", np.array([b"ab", b"c\\0d", b""], "S4")),
        ("SAME", inside[::-1]),
        ("LONG", np.array([b"x" * 1000, b"y"], object)),
    ]
    return [pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in values])]
"""
        )
        server = self.serve(source, "IN:BYTES", "TYPES:BYTES OBJECTS:BYTES FIXED:BYTES SAME:BYTES LONG:BYTES")
        outputs = server.ask({"IN": text_tensor((2, 1), b"\0one", b"")})
        self.assertEqual(outputs["TYPES"].tolist(), [b"ndarray", b"object", b"bytes"])
        self.assertEqual(outputs["OBJECTS"].tolist(), [b"\xff\0", "text \u20ac".encode(), b"5", b"None", b"1.5"])
        self.assertEqual(outputs["FIXED"].tolist(), [b"ab", b"c\0d", b""])
        self.assertEqual(outputs["SAME"].tolist(), [[b""], [b"\0one"]])
        self.assertEqual([len(item) for item in outputs["LONG"]], [1000, 1])

    def test_an_array_of_strings_may_be_used_again(self):
        source = model(
            """
def execute(self, requests):
    array, responses = np.array([b""], object), []
    for number, request in enumerate(requests):
        array[0] = str(number)
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
    return responses
"""
        )
        found = self.serve(source, outputs="OUT:BYTES").execute(*[{"IN": X}] * 3).responses
        self.assertEqual([response.outputs[0][1][0] for response in found], [b"0", b"1", b"2"])

    def test_an_input_may_be_an_output(self):
        source = model(
            """
def execute(self, requests):
    return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
        )
        server = self.serve(source, "A:FP32 B:BYTES C:BF16", "A:FP32 B:BYTES C:BF16")
        brain = ws.Tensor(14, (2,), b"\x80\x3f\0\x40")
        outputs = server.ask({"A": X, "B": text_tensor((2,), b"x", b"yy"), "C": brain})
        np.testing.assert_array_equal(outputs["A"], X)
        self.assertEqual(outputs["B"].tolist(), [b"x", b"yy"])
        self.assertEqual(outputs["C"], brain)
        self.assertFalse(server.slots)

    def test_left_out_inputs_are_left_out(self):
        server = self.evaluator()
        code = "[t.name() for t in r.inputs()], pb.get_input_tensor_by_name(r, 'B')"
        self.assertEqual(self.evaluate(server, code, A=X), "(['CODE', 'A'], None)")
        self.assertEqual(self.evaluate(server, code), "(['CODE'], None)")

    def test_bf16_only_by_dlpack(self):
        server = self.evaluator()
        brain = ws.Tensor(14, (2,), b"\x80\x3f\0\x40")
        code = "t = pb.get_input_tensor_by_name(r, 'C')\n"
        refused = (
            "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and "
            "from_dlpack() instead."
        )
        self.assertEqual(self.evaluate(server, code + "t.as_numpy()", C=brain), refused)
        self.assertEqual(self.evaluate(server, code + "t.shape(), t.name()", C=brain), "([2], 'C')")
        again = code + "u = pb.Tensor.from_dlpack('OUT', t.to_dlpack())\ndel t\nu.shape(), bytes(u._data)"
        self.assertEqual(self.evaluate(server, again, C=brain), "([2], b'\\x80?\\x00@')")
        self.assertFalse(server.slots)

    def test_dlpack(self):
        server = self.evaluator()
        t = "t = pb.Tensor('T', np.arange(6, dtype=np.%s).reshape(2, 3))\n"
        for dtype in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"):
            code = t % dtype + "u = pb.Tensor.from_dlpack('U', t)\nu.name(), u.as_numpy().tolist(), u.as_numpy().dtype.name"
            self.assertEqual(self.evaluate(server, code), str(("U", np.arange(6, dtype=dtype).reshape(2, 3).tolist(), dtype)))
        self.check(server, [
            ("pb.Tensor.from_dlpack('U', pb.Tensor('T', np.array([True, False]))).as_numpy()", "array([ True, False])"),
            ("pb.Tensor.from_dlpack('U', pb.Tensor('T', np.array(5, np.float32))).as_numpy()", "array(5., dtype=float32)"),
            ("pb.Tensor.from_dlpack('U', pb.Tensor('T', np.zeros((0, 3), np.int8)).to_dlpack()).shape()", "[0, 3]"),
            ("pb.Tensor('T', np.array([b'x'])).to_dlpack()", "TritonModelException: DLPack does not have support for string tensors."),
            ("pb.Tensor.from_dlpack('', np.ones(1))", "TritonModelException: Tensor name cannot be an empty string."),
            ("c = pb.Tensor('T', np.ones(1)).to_dlpack()\npb.Tensor.from_dlpack('U', c) and pb.Tensor.from_dlpack('U', c)", (
                "TritonModelException: The DLPack capsule was used already."
            )),
        ])
        text = self.evaluate(server, "pb.Tensor.from_dlpack('U', [1])")
        self.assertTrue(text.startswith("TritonModelException: Provided tensor is not supported. Tensor must be"), text)
        if self.evaluate(server, "hasattr(np, 'from_dlpack')") == "True":
            self.check(server, [
                ("np.from_dlpack(pb.Tensor('T', np.arange(3))).tolist()", "[0, 1, 2]"),
                ("pb.Tensor.from_dlpack('U', np.arange(3)).as_numpy().tolist()", "[0, 1, 2]"),
                ("pb.Tensor.from_dlpack('U', np.zeros((3, 0))).shape()", "[3, 0]"),
                ("type(pb.Tensor.from_dlpack('U', np.arange(4)[::2]))", (
                    "TritonModelException: DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
                    "in C-Order are supported."
                )),
                ("pb.Tensor.from_dlpack('U', np.arange(6).reshape(2, 3).T)", (
                    "TritonModelException: DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
                    "in C-Order are supported."
                )),
            ])

    def test_dlpack_keeps_the_memory_as_long_as_it_is_used(self):
        server = self.evaluator()
        code = "import sys\nmodel.kept = pb.Tensor.from_dlpack('U', r.inputs()[1]).as_numpy()[1:]\nmodel.kept.tolist()"
        self.assertEqual(self.evaluate(server, code, A=X), "[[3.0, 4.0, 5.0]]")
        self.assertEqual(len(server.slots), 1)
        self.assertEqual(self.evaluate(server, "model.kept.tolist()"), "[[3.0, 4.0, 5.0]]")
        self.assertEqual(self.evaluate(server, "del model.kept\n1"), "1")
        server.wait_until(lambda: not server.slots, 5)
        # An unused capsule is freed too.
        code = "import deuteron_dlpack as d\npb.Tensor('T', np.ones(1)).to_dlpack()\nlen(d.exported)"
        self.assertEqual(self.evaluate(server, code), "0")

    def test_functions_of_the_module(self):
        server = self.evaluator()
        config = {"input": [{"name": "A"}], "output": [{"name": "B", "dims": [1]}], "model_transaction_policy": {"decoupled": True}}
        self.check(server, [
            ("pb.get_input_config_by_name(%r, 'A'), pb.get_input_config_by_name(%r, 'B')" % (config, config), "({'name': 'A'}, None)"),
            ("pb.get_output_config_by_name(%r, 'B')" % config, "{'name': 'B', 'dims': [1]}"),
            ("pb.get_output_config_by_name({}, 'B')", "None"),
            ("pb.using_decoupled_model_transaction_policy(%r), pb.using_decoupled_model_transaction_policy({})" % config, "(True, False)"),
            ("pb.triton_string_to_numpy('TYPE_FP32') is np.float32, pb.triton_string_to_numpy('TYPE_BOOL') is bool", "(True, True)"),
            ("pb.triton_string_to_numpy('TYPE_STRING') is np.object_", "True"),
            ("pb.triton_string_to_numpy('TYPE_BF16')", "KeyError: 'TYPE_BF16'"),
            ("[pb.numpy_to_triton_type(pb.triton_to_numpy_type(n)) for n in range(16)]", (
                "[None, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, None, None]"
            )),
            ("pb.numpy_to_triton_type(np.bytes_), pb.numpy_to_triton_type(np.dtype('float32'))", "(13, 11)"),
            ("pb.serialize_byte_tensor(np.array([b'ab', 'c', 5], object))", "b'\\x02\\x00\\x00\\x00ab\\x01\\x00\\x00\\x00c\\x01\\x00\\x00\\x005'"),
            ("pb.serialize_byte_tensor(np.array([b'ab']))", "b'\\x02\\x00\\x00\\x00ab'"),
            ("pb.serialize_byte_tensor(np.array([], object)), pb.serialize_byte_tensor(np.ones(1))", "((), None)"),
            ("pb.deserialize_bytes_tensor(b'\\2\\0\\0\\0ab\\0\\0\\0\\0')", "array([b'ab', b''], dtype=object)"),
            ("pb.deserialize_bytes_tensor(b'').shape", "(0,)"),
            ("pb.deserialize_bytes_tensor(b'\\7\\0\\0\\0ab')", (
                "TritonModelException: Invalid bytes tensor data: string extends beyond buffer"
            )),
            ("pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END", "(1, 2)"),
            ("pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL, pb.TRITONSERVER_REQUEST_RELEASE_ALL", "(1, 1)"),
            ("pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", "2"),
            ("pb.PreferredMemory(pb.TRITONSERVER_MEMORY_GPU, 1) and pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU) and 1", "1"),
        ])
        self.assertEqual(self.evaluate(server, "pb.get_model_dir()"), repr(server.version))
        self.assertTrue(self.evaluate(server, "pb.PreferredMemory(None)").startswith("TypeError"))


class Memory(WorkerTest):
    """When memory of the server is free again, and what happens when there is none."""

    KEEP = model(
        """
kept = []
def execute(self, requests):
    word = requests[0].inputs()[0].as_numpy()[0].decode()
    x = requests[0].inputs()[1].as_numpy()
    if word == "drop":
        self.kept.clear()
    elif word == "check":
        word = json.dumps([np.asarray(kept).tolist() for kept in self.kept])
    elif word:
        self.kept.append(eval(word))
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([word], object))])]
"""
    )

    def test_inputs_live_as_long_as_anything_refers_to_them(self):
        server = self.serve(self.KEEP, "WORD:BYTES X:FP32", "OUT:BYTES")

        def run(word, value=X):
            return server.execute({"WORD": text_tensor((1,), word.encode()), "X": value})

        self.assertTrue(run("").inputs_free)
        for expression in [
            "x", "x[0]", "x.reshape(-1)[2:]", "x.T", "x.view(np.uint8)", "memoryview(x)", "requests", "requests[0]",
            "requests[0].inputs()[0]", "requests[0].inputs()", "np.lib.stride_tricks.as_strided(x, (2,), (4,))", "(x[:1], x[1:])[1]",
            "requests[0].get_response_sender() and requests[0]", "x.ravel()", "np.frombuffer(x, np.float32)", "np.asarray(x, np.float32)",
        ]:
            with self.subTest(expression=expression):
                self.assertFalse(run(expression).inputs_free)
                self.assertEqual(len(server.slots), 1)
                # Others come and go meanwhile.
                self.assertTrue(run("", X + 1).inputs_free)
                self.assertTrue(run("drop").inputs_free)
                server.wait_until(lambda: not server.slots, 5)
        for expression in ["x.copy()", "x[0, 0]", "x * 2", "str(x)", "x.tolist()", "requests[0].request_id()", "requests[0].get_response_sender()"]:
            with self.subTest(expression=expression):
                self.assertTrue(run(expression).inputs_free)

    def test_what_is_kept_keeps_its_contents(self):
        server = self.serve(self.KEEP, "WORD:BYTES X:FP32", "OUT:BYTES")
        for number in range(3):
            server.execute({"WORD": text_tensor((1,), b"x[1]"), "X": X + number})
        for _ in range(5):
            server.execute({"WORD": text_tensor((1,), b""), "X": X * 0})
        output = server.ask({"WORD": text_tensor((1,), b"check"), "X": X})["OUT"][0]
        self.assertEqual(json.loads(output), [[3, 4, 5], [4, 5, 6], [5, 6, 7]])

    def test_a_cycle_is_collected_before_it_costs_much(self):
        source = model(
            """
def execute(self, requests):
    cycle = [requests[0].inputs()[0].as_numpy()]
    cycle.append(cycle)
    return [pb_utils.InferenceResponse([])]
"""
        )
        server = self.serve("import gc\ngc.set_threshold(100000)\n" + source)
        for _ in range(100):
            server.execute({"IN": X})
        server.settle()
        self.assertLess(len(server.slots), 50)

    def test_a_new_request_region(self):
        server = self.serve(IDENTITY, region_sizes=(4096, 1 << 20))
        np.testing.assert_array_equal(server.ask({"IN": X})["OUT"], X)
        # The process sees EXECUTE first, and has to look for the region.
        for number in range(1, 4):
            self.assertEqual(server.add_region(0, 8192 << number), number)
            np.testing.assert_array_equal(server.ask({"IN": X + number})["OUT"], X + number)
            np.testing.assert_array_equal(server.ask({"IN": X})["OUT"], X)

    def test_the_response_region_is_used_from_below_and_slots_are_used_again(self):
        server = self.serve(IDENTITY)
        places = [server.execute({"IN": X}).span[2] for _ in range(3)]
        self.assertEqual(places, [64, 64, 64])
        # Slots that the server keeps stay untouched.
        kept = []
        for number in range(3):
            responses = server.execute({"IN": X + number})
            kept.append((responses.span, number))
            server.response_slots.clear()
        self.assertEqual([span[2] for span, _ in kept], [64, 128, 192])
        for span, number in kept:
            found = np.frombuffer(server.response_regions[0].map[span[2] : span[2] + 24], np.float32)
            np.testing.assert_array_equal(found.reshape(2, 3), X + number)
        server.response_slots = [kept[1][0][0], kept[0][0][0]]
        self.assertEqual(server.execute({"IN": np.ones(32, np.float32)}).span[2], 64)

    def test_a_full_response_region_is_asked_for_then_grown_then_refused(self):
        big = np.arange(1024, dtype=np.float32)
        server = self.serve(IDENTITY, region_sizes=(1 << 20, 8192))
        self.assertEqual(server.execute({"IN": big}).span[2], 64)
        first = server.response_slots.pop()
        # The server keeps the first: nothing is free, until it says so.
        server.send_execute({"IN": big})
        reader = server.expect("aux", ws.SPACE)
        call, size, must_grow = reader.take("QQB")
        self.assertEqual((size, must_grow), (4096, 0))
        server.response_slots = [first]
        server.reply_space(call, 0)
        self.assertEqual(server.responses().span[2], 64)
        second = server.response_slots.pop()
        # Nothing is free: it must grow.
        server.send_execute({"IN": big})
        call = server.expect("aux", ws.SPACE).take("QQB")[0]
        server.reply_space(call, 0)
        call, size, must_grow = server.expect("aux", ws.SPACE).take("QQB")
        self.assertEqual((size, must_grow), (4096, 1))
        server.add_region(1, 16384)
        server.reply_space(call, 1)
        responses = server.responses()
        self.assertEqual(responses.span[1:3], (1, 0))
        np.testing.assert_array_equal(responses.responses[0].outputs[0][1], big)
        # All new ones come from there, and region 0 is never dropped.
        server.response_slots.append(second)
        self.assertEqual(server.execute({"IN": big}).span[1], 1)
        # More than a whole region: there is no use in looking again.
        server.send_execute({"IN": np.zeros(10000, np.float32)})
        call, size, must_grow = server.expect("aux", ws.SPACE).take("QQB")
        self.assertEqual((size, must_grow), (40000, 1))
        server.reply_space(call, 2, "Failed to increase the shared memory pool size: no")
        self.assertEqual(server.responses().text, PREFIX + "Failed to increase the shared memory pool size: no")
        server.send_execute({"IN": np.zeros(10000, np.float32)})
        server.reply_space(server.expect("aux", ws.SPACE).take("QQB")[0], 2)
        self.assertIn("--python-memory-bytes-max", server.responses().text)
        # Region 1 goes with its last slot once there is another one.
        kept = server.execute({"IN": big}).span
        self.assertEqual(kept[1], 1)
        server.response_slots.clear()
        server.send_execute({"IN": np.zeros(10000, np.float32)})
        call = server.expect("aux", ws.SPACE).take("QQB")[0]
        number = server.add_region(1, 1 << 20)
        server.reply_space(call, 1)
        self.assertEqual(server.responses().span[1], number)
        server.settle()
        self.assertFalse(server.received["aux"])
        server.response_slots.append(kept[0])
        self.assertEqual(server.execute({"IN": big}).span[1], number)
        self.assertEqual(server.expect("aux", ws.REGION_DROPPED).take("H"), 1)

    def test_many_sizes_in_the_response_region(self):
        source = model(
            """
def execute(self, requests):
    size = int(requests[0].inputs()[0].as_numpy()[0])
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size, size % 251, np.uint8))])]
"""
        )
        server = self.serve(source, "IN:INT32", "OUT:UINT8")
        random = np.random.RandomState(7)
        kept = []
        for _ in range(400):
            size = int(random.randint(1, 20000))
            responses = server.execute({"IN": np.array([size], np.int32)})
            kept.append((responses.span, size))
            server.response_slots.remove(responses.span[0])
            while len(kept) > random.randint(1, 40):
                span, size = kept.pop(random.randint(len(kept)))
                found = server.response_regions[0].map[span[2] : span[2] + size]
                self.assertEqual(found, bytes([size % 251]) * size)
                server.response_slots.append(span[0])
        self.assertFalse(server.received["aux"], "it had to ask for memory")


class Requests(WorkerTest):
    """Section 1.4: requests and responses."""

    def test_methods_of_a_request_that_says_nothing(self):
        server = self.evaluator()
        self.check(server, [
            ("r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), r.trace().get_context()", (
                "('', 0, 0, 0, '{}', None)"
            )),
            ("sorted(r.requested_output_names()), type(r.requested_output_names())", "(['OUT', 'TEXT'], <class 'set'>)"),
            ("r.set_flags(3)\nr.flags()", "3"),
            ("r.model_name()", self.evaluate(server, "r.model_name()")),
            ("type(r)", "<class 'c_python_backend_utils.InferenceRequest'>"),
        ])
        self.assertTrue(self.evaluate(server, "r.model_name()").startswith("AttributeError: "))

    def test_methods_of_a_request_that_says_much(self):
        server = self.evaluator()
        known = details("the id \u20ac", 17, 3, 5_000_000, 2, '{"a":1,"b":true,"c":"d"}', '{"traceparent":"00-1-2-01"}')
        code = "r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters()), r.trace().get_context()"
        wanted = ("the id \u20ac", 17, 3, 5_000_000, {"a": 1, "b": True, "c": "d"}, '{"traceparent":"00-1-2-01"}')
        self.assertEqual(self.evaluate(server, code, known), repr(wanted))
        self.assertEqual(self.evaluate(server, "r.correlation_id()", details("", "text")), "'text'")
        # Of each request its own, in one batch.
        requests = [({"CODE": text_tensor((1,), b"r.request_id()")}, details("id%d" % n) if n % 3 else None) for n in range(9)]
        found = [response.outputs[0][1][0].decode() for response in server.execute(*requests).responses]
        self.assertEqual(found, [repr("id%d" % n if n % 3 else "") for n in range(9)])

    def test_requests_of_different_forms_in_one_batch(self):
        server = self.serve(IDENTITY, "IN:FP32 INB:BYTES INC:INT32", "OUT:FP32 OUTB:BYTES OUTC:INT32")
        forms = [
            {"IN": X}, {"IN": X[0]}, {"INB": text_tensor((1,), b"x"), "INC": np.arange(3, dtype=np.int32)}, {},
            {"IN": X, "INB": text_tensor((), b"y")}, {"IN": X + 1},
        ]
        random = np.random.RandomState(3)
        for _ in range(30):
            requests = [forms[random.randint(len(forms))] for _ in range(random.randint(1, 8))]
            known = [(request, details("x" * random.randint(9)) if random.randint(2) else None) for request in requests]
            found = server.execute(*known).responses
            for request, response in zip(requests, found):
                outputs = dict(response.outputs)
                self.assertEqual({"IN" + name[3:] for name in outputs}, set(request))
                if "IN" in request:
                    np.testing.assert_array_equal(outputs["OUT"], request["IN"])
                if "INC" in request:
                    np.testing.assert_array_equal(outputs["OUTC"], request["INC"])

    def test_responses(self):
        server = self.evaluator()
        t = "t = pb.Tensor('OUT', np.ones(1))\n"
        self.check(server, [
            (t + "x = pb.InferenceResponse([t])\nx.output_tensors() == [t], x.has_error(), x.error(), x.parameters()", (
                "(True, False, None, '{}')"
            )),
            (t + "x = pb.InferenceResponse(output_tensors=(t,), error=pb.TritonError('no'))\nx.has_error(), x.error().message()", "(True, 'no')"),
            (t + "pb.get_output_tensor_by_name(pb.InferenceResponse([t]), 'OUT') is t", "True"),
            (t + "pb.get_output_tensor_by_name(pb.InferenceResponse([t]), 'X')", "None"),
            ("pb.InferenceResponse().output_tensors()", "[]"),
            ("pb.InferenceResponse([None])", "TritonModelException: Output tensor for inference response should not be empty."),
            ("pb.InferenceResponse([], parameters={'a': 1, 'b': True, 'c': 'd'}).parameters()", "'{\"a\": 1, \"b\": true, \"c\": \"d\"}'"),
            ("pb.InferenceResponse([], parameters={1: 2})", (
                "TritonModelException: Expect parameters keys to have type str, found type <class 'int'>"
            )),
            ("pb.InferenceResponse([], parameters={'a': 1.5})", (
                "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'float'>"
            )),
            ("pb.InferenceResponse([], parameters=[])", "TritonModelException: Expect N8pybind114dictE, got <class 'list'>"),
            ("pb.InferenceResponse([], parameters={'a': 2 ** 64})", (
                "TritonModelException: Expect parameters values of type int to fit into 64 bits, found 18446744073709551616"
            )),
        ])
        refused = "TypeError: __init__(): incompatible constructor arguments."
        for code in [
            "pb.InferenceResponse(None)", "pb.InferenceResponse([1])", "pb.InferenceResponse('text')", "pb.InferenceResponse([], error='no')",
            "pb.InferenceResponse(5)",
        ]:
            self.assertTrue(self.evaluate(server, code).startswith(refused), code)

    def test_parameters_of_responses(self):
        source = model(
            """
def execute(self, requests):
    t = pb_utils.Tensor("OUT", np.ones(1))
    u = pb_utils.Tensor("B", np.ones(2))
    return [
        pb_utils.InferenceResponse([t], parameters={"a": "\\U0001f600\\ud800", "b": -5}),
        pb_utils.InferenceResponse([], parameters={}),
        pb_utils.InferenceResponse([t, u], parameters={"c": True}),
        pb_utils.InferenceResponse([t, u]),
    ]
"""
        )
        found = self.serve(source, outputs="OUT:FP64 B:FP64").execute(*[{"IN": X}] * 4).responses
        self.assertEqual(json.loads(found[0].parameters), {"a": "\U0001f600?", "b": -5})
        self.assertEqual([r.parameters for r in found[1:]], ["", '{"c": true}', ""])
        self.assertEqual([len(r.outputs) for r in found], [1, 0, 2, 2])

    def test_errors(self):
        server = self.evaluator()
        names = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
        self.assertEqual(self.evaluate(server, "[int(getattr(pb.TritonError, n)) for n in %r]" % names), str(list(range(8))))
        self.check(server, [
            ("e = pb.TritonError('m')\ne.message(), e.code() == pb.TritonError.INTERNAL", "('m', True)"),
            ("e = pb.TritonError(message='m', code=pb.TritonError.NOT_FOUND)\nstr(e.code()), e.code().name", "('__ErrorCode.NOT_FOUND', 'NOT_FOUND')"),
            ("isinstance(pb.TritonError('m'), Exception), issubclass(pb.TritonModelException, Exception)", "(False, True)"),
        ])
        for code in ["pb.TritonError()", "pb.TritonError(None)", "pb.TritonError('m', None)", "pb.TritonError('m', 3)"]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError"), code)

    def test_wrong_arguments_of_a_request(self):
        server = self.evaluator()
        fine = {"model_name": "'x'", "inputs": "[]", "requested_output_names": "[]"}

        def made(**arguments):
            given = dict(fine, **arguments)
            return "pb.InferenceRequest(%s) and 1" % ", ".join("%s=%s" % item for item in given.items() if item[1])

        self.assertEqual(self.evaluate(server, made()), "1")
        for name in [
            "request_id", "correlation_id", "inputs", "requested_output_names", "model_name", "model_version", "flags", "timeout",
            "preferred_memory", "trace",
        ]:
            self.assertTrue(self.evaluate(server, made(**{name: "None"})).startswith("TypeError: __init__()"), name)
        for name in fine:
            self.assertTrue(self.evaluate(server, made(**{name: ""})).startswith("TypeError: __init__()"), name)
        for name, value in [
            ("inputs", "[1]"), ("inputs", "'text'"), ("requested_output_names", "[1]"), ("requested_output_names", "'OUT'"), ("model_name", "5"),
            ("model_version", "1.5"), ("flags", "-1"), ("flags", "2 ** 32"), ("timeout", "'1'"), ("request_id", "7"), ("trace", "'x'"),
            ("preferred_memory", "1"), ("correlation_id", "-1"),
        ]:
            self.assertTrue(self.evaluate(server, made(**{name: value})).startswith("TypeError: __init__()"), (name, value))
        self.check(server, [
            (made(correlation_id="1.5"), "TritonModelException: Correlation ID must be integer or string"),
            (made(inputs="[None]", request_id="'i'"), (
                "TritonModelException: Input tensor for request with id 'i' and model name 'x' should not be empty."
            )),
            (made(requested_output_names="['']"), (
                "TritonModelException: Requested output name for request with id '' and model name 'x' should not be empty."
            )),
            (made(parameters="[]"), "TritonModelException: Expect N8pybind114dictE, got <class 'list'>"),
            (made(parameters="{'a': None}"), (
                "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"
            )),
            (made(parameters="None", correlation_id="'text'", timeout="np.int64(5)", requested_output_names="{'A'}"), "1"),
        ])


class Log(WorkerTest):
    """Section 1.4: the log."""

    def test_lines_bear_level_file_and_line(self):
        source = model(
            """
def initialize(self, args):
    logger = pb_utils.Logger
    logger.log("plain")
    logger.log("an error", logger.ERROR)
    logger.log_info("info")
    logger.log_warn("warn")
    logger.log_error("error")
    logger.log_verbose("verbose")
    logger.log(message="named", level=logger.VERBOSE)
    logger.log("last")
"""
        )
        for verbose in (0, 1):
            server = self.serve(source, log_verbose=verbose)
            found = []
            while not found or found[-1][2] != "last":
                reader = server.expect("aux", ws.LOG)
                level, line = reader.take("BI")
                file = reader.str16()
                self.assertEqual(file, server.version + "/model.py")
                found.append((level, line, reader.str32()))
                reader.end()
            wanted = [(0, 13, "plain"), (2, 14, "an error"), (0, 15, "info"), (1, 16, "warn"), (2, 17, "error")]
            wanted += [(3, 18, "verbose"), (3, 19, "named")] * verbose + [(0, 20, "last")]
            self.assertEqual(found, wanted)

    def test_wrong_arguments(self):
        server = self.evaluator()
        for code in ["pb.Logger.log(5)", "pb.Logger.log(None)", "pb.Logger.log('x', 1)", "pb.Logger.log_info()", "pb.Logger.log_info(5)", "pb.Logger.log('x', None)"]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError"), code)

    def test_a_long_text_is_cut(self):
        server = self.serve(model("def initialize(self, args): pb_utils.Logger.log_info('\\u20ac' * 1000000)"))
        reader = server.expect("aux", ws.LOG)
        reader.take("BI"), reader.str16()
        self.assertIn(len(reader.str32().encode()), range((1 << 20) - 3, (1 << 20) + 1))
        reader.end()


class Senders(WorkerTest):
    """Section 1.5: response senders, cancellation, rescheduling."""

    def run_model(self, body, decoupled, count=1):
        server = self.serve(
            model("def execute(self, requests):\n" + "\n".join("    " + line for line in body.strip("\n").split("\n"))),
            outputs="OUT:FP32 TEXT:BYTES", decoupled=decoupled,
        )
        server.send_execute(*[{"IN": X}] * count)
        return server

    RESPONSE = "pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.float32([%s]))])"

    def test_one_response_of_a_sender(self):
        server = self.run_model("requests[0].get_response_sender().send(%s, 1)" % self.RESPONSE % 7, False)
        sent = server.sent()
        self.assertEqual((sent.request, sent.flags, sent.response.kind), (1, 1, 1))
        self.assertEqual(sent.response.outputs[0][1].tolist(), [7])
        self.assertEqual([response.kind for response in server.responses().responses], [0])
        server.settle()
        self.assertFalse(server.received["main"])

    def test_a_response_then_the_end(self):
        server = self.run_model(
            "s = requests[0].get_response_sender()\ns.send(%s)\ns.send(flags=1)\nreturn [None]" % self.RESPONSE % 7, False
        )
        first, second = server.sent(), server.sent()
        self.assertEqual((first.flags, first.response.kind), (0, 1))
        self.assertEqual((second.flags, second.response.kind), (1, 0))
        self.assertEqual([response.kind for response in server.responses().responses], [0])

    def test_a_response_without_the_end_ends_with_its_sender(self):
        server = self.run_model("requests[0].get_response_sender().send(%s)" % self.RESPONSE % 7, False)
        self.assertEqual(server.sent().flags, 0)
        self.assertEqual([response.kind for response in server.responses().responses], [0])
        last = server.sent()
        self.assertEqual((last.request, last.flags, last.response.kind), (1, 2, 0))

    def test_senders_in_other_threads_after_execute(self):
        body = """
def answer(sender, number):
    time.sleep(0.05)
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([number]))]), 1)
for number, request in enumerate(requests):
    threading.Thread(target=answer, args=(request.get_response_sender(), number)).start()
"""
        for decoupled in (False, True):
            server = self.run_model(body, decoupled, 4)
            responses = server.responses()
            self.assertEqual([response.kind for response in responses.responses], [0] * 4)
            self.assertTrue(responses.inputs_free)
            found = sorted((sent.request, sent.flags, sent.response.outputs[0][1].tolist()) for sent in [server.sent() for _ in range(4)])
            first = found[0][0]
            self.assertEqual(found, [(first + number, 1, [number]) for number in range(4)])

    def test_requests_may_be_kept_in_place_of_senders(self):
        body = """
def answer(requests):
    time.sleep(0.05)
    for request in requests:
        request.get_response_sender().send(%s, 1)
threading.Thread(target=answer, args=(requests,)).start()
""" % self.RESPONSE % 5
        server = self.run_model(body, False, 2)
        self.assertEqual([response.kind for response in server.responses().responses], [0, 0])
        self.assertEqual([server.sent().flags for _ in range(2)], [1, 1])

    def test_any_number_of_responses(self):
        body = """
for request in requests:
    sender = request.get_response_sender()
    for number in range(3):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([number]))]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
        server = self.run_model(body, True, 2)
        for request in (1, 2):
            found = [server.sent() for _ in range(4)]
            self.assertEqual([sent.request for sent in found], [request] * 4)
            self.assertEqual([sent.flags for sent in found], [0, 0, 0, 1])
        self.assertEqual([response.kind for response in server.responses().responses], [0, 0])

    def test_no_response_at_all(self):
        server = self.run_model("requests[0].get_response_sender().send(flags=1)", True)
        self.assertEqual(server.sent().flags, 1)
        self.assertEqual([response.kind for response in server.responses().responses], [0])
        server = self.run_model("pass", True)
        self.assertEqual([response.kind for response in server.responses().responses], [0])
        self.assertEqual(server.sent().flags, 2)

    def test_a_sender_that_is_dropped_later(self):
        server = self.run_model("threading.Timer(0.1, lambda kept: None, (requests[0].get_response_sender(),)).start()", False)
        self.assertEqual([response.kind for response in server.responses().responses], [0])
        self.assertEqual(server.sent().flags, 2)

    def test_outputs_of_senders_are_pruned(self):
        body = "requests[0].get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor('X', np.ones(1))]), 1)"
        server = self.run_model(body, False)
        self.assertEqual(server.sent().response.outputs, [])

    def test_an_error_by_a_sender(self):
        body = "requests[0].get_response_sender().send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.UNAVAILABLE)), 1)"
        sent = self.run_model(body, True).sent()
        self.assertEqual((sent.flags, sent.response.kind, sent.response.code, sent.response.text), (1, 2, 4, "no"))

    def refused(self, statements, decoupled):
        body = "s = requests[0].get_response_sender()\nr = %s\ntry:\n" % self.RESPONSE % 1
        body += "".join("    " + line + "\n" for line in statements)
        body += "    text = 'fine'\nexcept Exception as error:\n    text = type(error).__name__ + ': ' + str(error)\nself.kept = s\n"
        body += "pb_utils.Logger.log_info(text)"
        server = self.run_model(body, decoupled)
        reader = server.expect("aux", ws.LOG)
        reader.take("BI"), reader.str16()
        return reader.str32()

    def test_what_may_not_be_sent(self):
        unable = "TritonModelException: Unable to send response. "
        for statements, decoupled, wanted in [
            (["s.send(r, 2)"], True, unable + "Unsupported flag provided."),
            (["s.send()"], True, "TritonModelException: Inference Response object must be provided when the response flags is set to zero."),
            (["s.send(flags=1)", "s.send(r)"], True, unable + "Response sender has been closed."),
            (["s.send(r, 1)", "s.send(flags=1)"], True, unable + "Response sender has been closed."),
            (["s.send(r)", "s.send(r)"], False, unable + "Non-decoupled model cannot send more than one response."),
            (["s.send(r, 1)", "s.send(r)"], False, unable + "Non-decoupled model cannot send more than one response."),
            (["s.send(flags=1)"], False, unable + "Non-decoupled model cannot send complete final before sending a response."),
            (["s.send(r, 1)", "s.send(flags=1)"], False, unable + "Response sender has been closed."),
            (["s.send(r)", "s.send(flags=1)"], False, "fine"),
        ]:
            with self.subTest(statements=statements):
                self.assertEqual(self.refused(statements, decoupled), wanted)
        for statement in ("s.send('text')", "s.send(r, None)", "s.send(r, -1)", "s.send(r, 'x')"):
            self.assertTrue(self.refused([statement], True).startswith("TypeError: send()"), statement)

    def test_a_response_both_sent_and_returned(self):
        body = "r = %s\nrequests[0].get_response_sender().send(r, 1)\nreturn [r]" % self.RESPONSE % 1
        server = self.run_model(body, False)
        server.sent()
        text = server.responses().text
        self.assertEqual(text, PREFIX + "Unable to send response. Non-decoupled model cannot send more than one response.")

    def test_the_sender_of_an_answered_request_is_closed(self):
        source = model(
            """
kept = None
def execute(self, requests):
    if self.kept is None:
        self.kept = requests[0]
        return [pb_utils.InferenceResponse([])]
    try:
        self.kept.get_response_sender().send(pb_utils.InferenceResponse([]))
    except pb_utils.TritonModelException as error:
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
"""
        )
        server = self.serve(source)
        server.execute({"IN": X})
        (response,) = server.execute({"IN": X}).responses
        self.assertEqual(response.text, "Unable to send response. Non-decoupled model cannot send more than one response.")

    def test_is_cancelled_asks_until_the_answer_is_yes(self):
        body = """
sender = requests[0].get_response_sender()
found = [requests[0].is_cancelled(), sender.is_cancelled(), requests[0].is_cancelled(), sender.is_cancelled()]
return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([str(found)], object))])]
"""
        server = self.run_model(body, False)
        for answer in (False, False, True):
            call, request = server.expect("aux", ws.IS_CANCELLED).take("QQ")
            self.assertEqual(request, 1)
            server.reply(call, answer)
        (response,) = server.responses().responses
        self.assertEqual(response.outputs[0][1][0], b"[False, False, True, True]")

    def test_rescheduling(self):
        body = "requests[1].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn [%s, None]" % self.RESPONSE % 1
        responses = self.run_model(body, False, 2).responses().responses
        self.assertEqual([response.kind for response in responses], [1, 3])
        body = "requests[0].set_release_flags(2)\nreturn [%s]" % self.RESPONSE % 1
        self.assertEqual(self.run_model(body, False).responses().text, PREFIX + (
            "Expected a None object in the execute function return list for reschduled request, found type "
            "'<class 'c_python_backend_utils.InferenceResponse'>'."
        ))
        body = "requests[0].get_response_sender().send(%s)\nrequests[0].set_release_flags(2)" % self.RESPONSE % 1
        server = self.run_model(body, True)
        self.assertEqual(server.sent().flags, 0)
        self.assertEqual([response.kind for response in server.responses().responses], [3])
        server.settle()
        self.assertFalse(server.received["main"])
        self.assertTrue(self.evaluate(self.evaluator(), "r.set_release_flags(None)").startswith("TypeError"))

    def test_senders_in_finalizers_of_garbage_do_no_harm(self):
        # The collector may run in the middle of a send, and finalizers send too.
        source = model(
            """
def execute(self, requests):
    gc.collect()
    for request in requests:
        sender = request.get_response_sender()
        cycle = [sender]
        cycle.append(cycle)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1))]))
"""
        )
        server = self.serve("import gc\ngc.set_threshold(1)\n" + source, decoupled=True)
        for _ in range(30):
            server.send_execute(*[{"IN": X}] * 10)
        server.settle(0.5)
        kinds = [kind for kind, _ in server.received["main"]]
        self.assertEqual(kinds.count(ws.RESPONSES), 30)
        self.assertGreater(kinds.count(ws.SEND), 550)


class Calls(WorkerTest):
    """Section 1.6: requests to other models."""

    CALL = "pb.InferenceRequest(model_name='other', inputs=[pb.Tensor('A', np.float32([1, 2]))], requested_output_names=['O'])"

    def answered(self, server, code, reply, known=None, **inputs):
        """Runs Python text that makes calls, each answered by `reply(call)`."""
        calls = []

        def answer(reader):
            call = server.read_call(reader)
            calls.append(call)
            reply(call)

        server.answers[ws.BLS_CALL] = answer
        text = self.evaluate(server, code, known, **inputs)
        return text, calls

    def test_exec(self):
        server = self.evaluator()
        code = "x = %s.exec()\nt = pb.get_output_tensor_by_name(x, 'O')\n" % self.CALL
        code += "x.has_error(), t.as_numpy().tolist(), t.as_numpy().flags.writeable, x.parameters()"

        def reply(call):
            server.reply_call(call, [("O", call.inputs[0][1] + 1)], parameters='{"p":1}')

        text, calls = self.answered(server, code, reply)
        self.assertEqual(text, "(False, [2.0, 3.0], True, '{\"p\":1}')")
        call = calls[0]
        self.assertEqual((call.parent, call.decoupled, call.model, call.version, call.outputs), (1, 0, "other", -1, ["O"]))
        self.assertEqual([name for name, _ in call.inputs], ["A"])
        self.assertEqual(call.details, {
            "id": "", "correlation": None, "flags": 0, "timeout": 0, "priority": 0, "parameters": "", "trace": "",
        })
        server.wait_until(lambda: not server.slots)

    def test_everything_that_a_request_says_is_passed_on(self):
        server = self.evaluator()
        code = (
            "pb.InferenceRequest('id', 5, [r.inputs()[2], r.inputs()[1]], [], 'other', 3, 1, 2500, "
            "pb.PreferredMemory(pb.TRITONSERVER_MEMORY_GPU), r.trace(), {'a': 'b'}).exec().has_error()"
        )
        brain = ws.Tensor(14, (1,), b"ab")
        text, calls = self.answered(
            server, code, lambda call: server.reply_call(call), details(trace="context"), A=X, B=text_tensor((1,), b"word")
        )
        self.assertEqual(text, "False")
        call = calls[0]
        self.assertEqual((call.version, call.outputs, call.parent), (3, [], 1))
        self.assertEqual(call.details, {
            "id": "id", "correlation": 5, "flags": 1, "timeout": 2500, "priority": 0, "parameters": '{"a": "b"}', "trace": "context",
        })
        self.assertEqual(call.inputs[0][1].tolist(), [b"word"])
        np.testing.assert_array_equal(call.inputs[1][1], X)
        code = "pb.InferenceRequest(correlation_id='text', inputs=[r.inputs()[1]], requested_output_names=['A', 'B'], model_name='x').exec().has_error()"
        _, calls = self.answered(server, code, lambda call: server.reply_call(call), C=brain)
        self.assertEqual((calls[0].details["correlation"], calls[0].outputs), ("text", ["A", "B"]))
        self.assertEqual(calls[0].inputs[0][1], brain)

    def test_the_parent_is_unknown_in_a_larger_batch(self):
        server = self.evaluator()
        calls = []

        def answer(reader):
            calls.append(server.read_call(reader))
            server.reply_call(calls[-1])

        server.answers[ws.BLS_CALL] = answer
        request = {"CODE": text_tensor((1,), (self.CALL + ".exec()").encode())}
        server.execute(request, request)
        traced = {"CODE": text_tensor((1,), (self.CALL[:-1] + ", trace=r.trace()).exec()").encode())}
        server.execute(traced, traced)
        self.assertEqual([call.parent for call in calls], [0, 0, 3, 4])

    def test_errors_do_not_raise(self):
        server = self.evaluator()
        text = "Model other - Error when running inference: Failed for execute the inference request. Model 'other' is not ready."
        code = "x = %s.exec()\nx.has_error(), x.error().message(), x.error().code().name, x.output_tensors()" % self.CALL
        found, _ = self.answered(server, code, lambda call: server.reply_call(call, error=(4, text)))
        self.assertEqual(found, repr((True, text, "UNAVAILABLE", [])))
        # What cannot be sent is an error too.
        big = "pb.InferenceRequest(model_name='x', inputs=[], requested_output_names=[], correlation_id='y' * 200).exec().error().message()"
        self.assertEqual(self.evaluate(server, big), "'a correlation id has at most 128 bytes'")
        self.assertEqual(self.evaluate(server, "r.exec().has_error()"), "True")

    def test_no_room_for_the_inputs_is_an_error(self):
        server = self.evaluator(region_sizes=(1 << 20, 4096))
        server.answers[ws.SPACE] = lambda reader: server.reply_space(reader.take("QQB")[0], 2, "no room")
        code = "t = pb.Tensor('A', np.zeros(5000))\n"
        code += "pb.InferenceRequest(model_name='x', inputs=[t], requested_output_names=[]).exec().error().message()"
        self.assertEqual(self.evaluate(server, code), "'no room'")

    def test_only_while_requests_are_served(self):
        call = "pb_utils.InferenceRequest(model_name='x', inputs=[], requested_output_names=[])"
        wanted = "BLS is only supported during the 'execute' function."
        server = self.serve(model("def initialize(self, args):\n    %s.exec()" % call), start=False)
        self.assertTrue(server.expect("main", ws.FAILED).str32().startswith("TritonModelException: " + wanted))
        server = self.serve(model("def finalize(self):\n    try:\n        %s.exec()\n    except pb_utils.TritonModelException as e:\n        print(e)" % call))
        self.assertEqual(server.finalize()[0], wanted + "\n")
        self.assertTrue(self.evaluate(self.evaluator(), self.CALL + ".exec(None)").startswith("TypeError: exec()"))

    def test_outputs_live_as_long_as_anything_refers_to_them(self):
        server = self.evaluator()
        code = "model.kept = %s.exec().output_tensors()[0].as_numpy()[1:]\nmodel.kept.tolist()" % self.CALL
        text, _ = self.answered(server, code, lambda call: server.reply_call(call, [("O", X)]))
        self.assertEqual((text, len(server.slots)), ("[[3.0, 4.0, 5.0]]", 1))
        self.assertEqual(self.evaluate(server, "del model.kept\n1"), "1")
        server.wait_until(lambda: not server.slots)

    def test_calls_of_several_threads_at_once(self):
        code = """
import threading
def run(number):
    t = pb.Tensor('A', np.float32([number]))
    for _ in range(20):
        x = pb.InferenceRequest(model_name='other', inputs=[t], requested_output_names=['O']).exec()
        found[number] += int(x.output_tensors()[0].as_numpy()[0]) == number + 1
found = [0] * 6
threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
found"""
        for source in (EVALUATE, EVALUATE + "\n    def is_ready(self): return True\n"):
            server = self.serve(source, "CODE:BYTES", "TEXT:BYTES")
            held, answered = [], [0] * 6

            def reply(call):
                # In another order than they came, once all that can come are there, or three.
                held.append(call)
                if len(held) >= min(3, sum(count < 20 for count in answered)):
                    for late in reversed(held):
                        answered[int(late.inputs[0][1][0])] += 1
                        server.reply_call(late, [("O", late.inputs[0][1] + 1)])
                    held.clear()

            text, calls = self.answered(server, code, reply)
            self.assertEqual(text, str([20] * 6))
            self.assertEqual(len(calls), 120)

    def test_an_iterator_over_a_decoupled_call(self):
        server = self.evaluator()

        def reply(call):
            self.assertTrue(call.decoupled)
            for number in range(3):
                server.reply_call(call, [("O", np.float32([number]))], is_final=False)
            server.reply_call(call, is_final=True, kind=0)

        code = "i = %s.exec(decoupled=True)\nf = lambda: [[t.as_numpy().tolist() for t in x.output_tensors()] for x in i]\nf(), f(), type(i)" % self.CALL
        text, calls = self.answered(server, code, reply)
        once = [[[0.0]], [[1.0]], [[2.0]], []]
        self.assertEqual(text, "(%s, %s, <class 'c_python_backend_utils.ResponseIterator'>)" % (once, once))
        # Each response that was taken but the last lets another one come.
        self.assertEqual([server.expect("aux", ws.BLS_READ).take("Q") for _ in range(3)], [calls[0].call] * 3)
        server.wait_until(lambda: not server.slots)
        self.assertFalse(server.received["aux"])

    def test_an_iterator_over_a_plain_model_and_next(self):
        server = self.evaluator()
        code = "i = iter(%s.exec(True))\nx = next(i)\nx.has_error(), next(i, 'end'), len(list(i))" % self.CALL
        text, _ = self.answered(server, code, lambda call: server.reply_call(call, [("O", X)]))
        self.assertEqual(text, "(False, 'end', 1)")

    def test_large_responses_of_a_decoupled_call_are_views(self):
        server = self.evaluator()
        large = np.zeros(50000, np.float32)
        code = "i = %s.exec(decoupled=True)\nmodel.kept = next(i).output_tensors()[0].as_numpy()\nlen(model.kept)" % self.CALL
        text, _ = self.answered(server, code, lambda call: server.reply_call(call, [("O", large)]))
        self.assertEqual((text, len(server.slots)), ("50000", 1))
        self.evaluate(server, "del model.kept\n1")
        server.wait_until(lambda: not server.slots)

    def test_a_dropped_iterator_is_drained_without_anybody_waiting(self):
        server = self.evaluator()
        code = "i = %s.exec(decoupled=True)\nnext(i)\ndel i\n1" % self.CALL
        text, calls = self.answered(server, code, lambda call: server.reply_call(call, [("O", X)], is_final=False))
        self.assertEqual(text, "1")
        for number in range(5):
            # The process is idle: its responses are taken nevertheless.
            server.reply_call(calls[0], [("O", X)], is_final=number == 4)
        found = [server.expect("aux", ws.BLS_READ).take("Q") for _ in range(5)]
        self.assertEqual(found, [calls[0].call] * 5)
        server.wait_until(lambda: not server.slots)

    def test_cancel(self):
        server = self.evaluator()

        def reply(call):
            server.reply_call(call, [("O", X)], is_final=False)

        def cancelled(reader):
            self.assertEqual(reader.take("Q"), calls_seen[0])
            body = struct.pack("<QB", calls_seen[0], 1) + bytes(22) + b"\2\7" + ws.str32("cancelled")
            server.send_aux(ws.BLS_REPLY, body)

        calls_seen = [1]
        server.answers[ws.BLS_CANCEL] = cancelled
        code = "i = %s.exec(decoupled=True)\nnext(i)\ni.cancel()\ni.cancel()\nlast = next(i)\ni.cancel()\nlast.error().message(), last.error().code().name" % self.CALL
        text, calls = self.answered(server, code, reply)
        self.assertEqual((text, calls[0].call), ("('cancelled', 'CANCELLED')", 1))

    ASYNC = (
        IMPORTS
        + """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        text = repr(await self.work())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([text], object))])]
    def call(self, number=0):
        t = pb_utils.Tensor("A", np.float32([number]))
        return pb_utils.InferenceRequest(model_name="other", inputs=[t], requested_output_names=["O"])
"""
    )

    def async_model(self, work):
        lines = "".join("        " + line + "\n" for line in work.strip("\n").split("\n"))
        return self.serve(self.ASYNC + "    async def work(self):\n" + lines, "IN:FP32", "TEXT:BYTES")

    def test_waits_of_coroutines_overlap(self):
        server = self.async_model(
            """
found = await asyncio.gather(*[self.call(number).async_exec() for number in range(5)])
return [int(x.output_tensors()[0].as_numpy()[0]) for x in found], threading.active_count()
"""
        )
        for _ in range(2):
            server.send_execute({"IN": X})
            calls = [server.call() for _ in range(5)]
            for call in reversed(calls):
                server.reply_call(call, [("O", call.inputs[0][1] + 10)])
            text = server.responses().responses[0].outputs[0][1][0].decode()
            # No pool of threads: the main thread and the loop's are those that Python counts.
            self.assertEqual(text, "([10, 11, 12, 13, 14], 2)")

    def test_an_iterator_of_a_coroutine(self):
        server = self.async_model(
            """
first, second = await asyncio.gather(self.call(1).async_exec(decoupled=True), self.call(2).async_exec(decoupled=True))
return [len(x.output_tensors()) for x in first], [len(x.output_tensors()) for x in second]
"""
        )
        server.send_execute({"IN": X})
        first, second = server.call(), server.call()
        for call in (second, first):
            server.reply_call(call, [("O", X)], is_final=False)
        for call in (first, second):
            server.reply_call(call, kind=0)
        self.assertEqual(server.responses().responses[0].outputs[0][1][0], b"([1, 0], [1, 0])")

    def test_a_call_that_a_coroutine_gives_up_is_cancelled(self):
        server = self.async_model(
            """
try:
    await asyncio.wait_for(self.call().async_exec(), 0.05)
except asyncio.TimeoutError:
    return "gave up"
"""
        )
        server.send_execute({"IN": X})
        call = server.call()
        self.assertEqual(server.responses().responses[0].outputs[0][1][0], b"'gave up'")
        self.assertEqual(server.expect("aux", ws.BLS_CANCEL).take("Q"), call.call)
        server.reply_call(call, [("O", X)])
        server.wait_until(lambda: not server.slots)

    def test_coroutines_get_errors_and_exec_blocks_in_them(self):
        server = self.async_model(
            """
x = await self.call().async_exec()
y = self.call().exec()
return x.error().message(), y.error().message()
"""
        )
        server.send_execute({"IN": X})
        for text in ("one", "two"):
            server.reply_call(server.call(), error=(1, text))
        self.assertEqual(server.responses().responses[0].outputs[0][1][0], b"('one', 'two')")

    def test_a_loop_of_the_models_own(self):
        server = self.evaluator()
        code = "import asyncio\nasync def f(call): return [x.has_error() for x in await asyncio.gather(call.async_exec(), call.async_exec())]\nasyncio.run(f(%s))" % self.CALL
        text, calls = self.answered(server, code, lambda call: server.reply_call(call))
        self.assertEqual((text, len(calls)), ("[False, False]", 2))
        self.assertEqual(self.evaluate(server, self.CALL + ".async_exec()"), "RuntimeError: no running event loop")

    def test_a_call_to_several_models_from_a_decoupled_coroutine(self):
        source = self.ASYNC.replace('text = repr(await self.work())\n', 'sender = requests[0].get_response_sender()\n').replace(
            'return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([text], object))])]',
            'sender.send(await self.call().async_exec(), 1)',
        )
        server = self.serve(source, "IN:FP32", "O:FP32", decoupled=True)
        server.execute({"IN": X})
        server.execute({"IN": X})
        for call in [server.call(), server.call()]:
            server.reply_call(call, [("O", X)])
        found = [server.sent() for _ in range(2)]
        self.assertEqual([(sent.request, sent.flags) for sent in found], [(1, 1), (2, 1)])
        np.testing.assert_array_equal(found[1].response.outputs[0][1], X)


class Control(WorkerTest):
    """Section 1.4: other models, and metrics."""

    def test_load_unload_ready(self):
        server = self.evaluator()
        seen = []

        def answer(reader):
            call, operation = reader.take("QB")
            name, version, dependents, config = reader.str16(), reader.str16(), reader.take("B"), reader.str32()
            span = server.read_span(reader)
            files = []
            for _ in range(reader.take("H")):
                path = reader.str16()
                offset, size = reader.take("QQ")
                start = span[2] + offset
                files.append((path, server.response_regions[span[1]].map[start : start + size]))
            reader.end()
            seen.append((operation, name, version, dependents, config, files))
            if name == "bad":
                server.reply(call, error=(1, "no"))
            else:
                server.reply(call, True if operation == 2 else None)

        server.answers[ws.CONTROL] = answer
        failed = "Failed to process the request for model 'm_0_0', message: no"
        self.check(server, [
            ("pb.load_model('a')", "None"),
            ("pb.load_model(model_name='a', config='{}', files={'file:1/model.onnx': b'content', 'file:1/empty': b''})", "None"),
            ("pb.load_model('bad')", "TritonModelException: Failed to load model: " + failed),
            ("pb.unload_model('a', True)", "None"),
            ("pb.unload_model('bad')", "TritonModelException: Failed to unload model: " + failed),
            ("pb.is_model_ready('a')", "True"),
            ("pb.is_model_ready('a', '2')", "True"),
            ("pb.is_model_ready('bad')", "TritonModelException: Failed to check model readiness: " + failed),
            ("pb.load_model('a', files=[])", (
                "TritonModelException: failed to load model 'a', files should be a dictionary of file paths and file contents"
            )),
        ])
        self.assertEqual(seen, [
            (0, "a", "", 0, "", []),
            (0, "a", "", 0, "{}", [("file:1/model.onnx", b"content"), ("file:1/empty", b"")]),
            (0, "bad", "", 0, "", []),
            (1, "a", "", 1, "", []),
            (1, "bad", "", 0, "", []),
            (2, "a", "", 0, "", []),
            (2, "a", "2", 0, "", []),
            (2, "bad", "", 0, "", []),
        ])
        for code in ["pb.load_model(None)", "pb.load_model('a', None)", "pb.unload_model(None)", "pb.unload_model('a', None)", "pb.is_model_ready(None)", "pb.is_model_ready('a', None)"]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError"), code)

    def test_not_while_it_ends(self):
        server = self.serve(model("def finalize(self):\n    try:\n        pb_utils.unload_model('a')\n    except pb_utils.TritonModelException as e:\n        print(e)"))
        self.assertIn("Failed to unload model: ", server.finalize()[0])

    def test_metrics(self):
        server = self.evaluator()
        seen = []

        def answer(kind):
            def run(reader):
                if kind == ws.METRIC_FAMILY:
                    call, family = reader.take("QB")
                    seen.append(("family", family, reader.str16(), reader.str16()))
                    if seen[-1][2] == "bad":
                        server.reply(call, error=(3, "no"))
                    else:
                        server.reply(call, 70 + family)
                elif kind == ws.METRIC:
                    call, family = reader.take("QI")
                    seen.append(("metric", family, reader.str32(), [reader.take("d") for _ in range(reader.take("H"))]))
                    server.reply(call, 5)
                elif kind == ws.METRIC_VALUE:
                    seen.append(("value", *reader.take("QI")[1:]))
                    server.reply(struct.unpack_from("<Q", reader.body)[0], 2.5)
                elif kind == ws.METRIC_UPDATE:
                    seen.append(("update", *reader.take("IBd")))
                else:
                    seen.append(("drop", *reader.take("BI")))
                reader.end()

            return run

        for kind in (ws.METRIC_FAMILY, ws.METRIC, ws.METRIC_VALUE, ws.METRIC_UPDATE, ws.METRIC_DROP):
            server.answers[kind] = answer(kind)
        family = "f = pb.MetricFamily(name='n', description='d', kind=pb.MetricFamily.%s)\n"
        failed = "Failed to process the request for model 'm_0_0', message: "
        one = family % "COUNTER" + "m = f.Metric(labels={'a': 'b'})\n"
        self.assertEqual(self.evaluate(server, one + "m.increment(2)\nm.value()"), "2.5")
        self.assertEqual(seen, [
            ("family", 0, "n", "d"), ("metric", 70, '{"a": "b"}', []), ("update", 5, 0, 2.0), ("value", 5), ("drop", 0, 70),
        ])
        seen.clear()
        self.assertEqual(self.evaluate(server, family % "GAUGE" + "m = f.Metric()\nm.set(-1), m.increment(-2)"), "(None, None)")
        self.assertEqual(self.evaluate(server, family % "HISTOGRAM" + "m = f.Metric(buckets=[1, 2.5])\nm.observe(3)"), "None")
        self.assertIn(("metric", 72, "{}", [1.0, 2.5]), seen)
        self.assertIn(("update", 5, 2, 3.0), seen)
        create = "TritonModelException: Failed to create metric. "
        kinds = "TRITONSERVER_METRIC_KIND_"
        table = [
            (family % "COUNTER" + "f.Metric(labels=5)", create + "Labels must be a dictionary."),
            (family % "HISTOGRAM" + "f.Metric(buckets=(1,))", create + "Buckets must be a list."),
            (family % "HISTOGRAM" + "f.Metric()", create + "Missing required buckets."),
            (family % "GAUGE" + "f.Metric(buckets=[1])", create + "Unexpected buckets found."),
            (one + "m.set(1)", "TritonModelException: Failed to set metric value: " + failed + kinds + "COUNTER does not support Set"),
            (one + "m.observe(1)", "TritonModelException: Failed to observe metric value: " + failed + kinds + "COUNTER does not support Observe"),
            (one + "m.increment(-1)", (
                "TritonModelException: Failed to increment metric value: " + failed + kinds
                + "COUNTER can only be incremented monotonically by non-negative values."
            )),
            (family % "HISTOGRAM" + "f.Metric(buckets=[1]).increment(1)", (
                "TritonModelException: Failed to increment metric value: " + failed + kinds + "HISTOGRAM does not support Increment"
            )),
            (family % "HISTOGRAM" + "f.Metric(buckets=[1]).value()", (
                "TritonModelException: Failed to get metric value: " + failed + kinds + "HISTOGRAM does not support Value"
            )),
            (one + "del f\nm.increment(1)", (
                "TritonModelException: Failed to increment metric value: Invalid metric operation as the corresponding "
                "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER its corresponding "
                "'Metric' objects have been deleted."
            )),
            ("pb.MetricFamily('bad', 'd', pb.MetricFamily.GAUGE)", "TritonModelException: Error when creating MetricFamily: " + failed + "no"),
        ]
        self.check(server, table)
        for code in ["pb.MetricFamily()", "pb.MetricFamily('n', 'd', 5)", "pb.MetricFamily(None, 'd', pb.MetricFamily.GAUGE)", "pb.MetricFamily('n', None, pb.MetricFamily.GAUGE)"]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError"), code)


class Complete(WorkerTest):
    """Section 1.4: `auto_complete_config`."""

    def complete(self, body, config=None):
        source = model("@staticmethod\ndef auto_complete_config(config):\n" + "\n".join("    " + line for line in body.strip("\n").split("\n")))
        known = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
        known.update(config or {})
        server = self.serve(source, mode="complete", start=False, config=known)
        server.wait_until(lambda: server.received["main"])
        kind, body = server.received["main"].popleft()
        text = ws.Reader(body).str32()
        server.finalize()
        return json.loads(text) if kind == ws.COMPLETED else text.partition("\n\nAt:")[0]

    def test_a_configuration_is_completed(self):
        body = """
config.set_max_batch_size(4)
config.set_dynamic_batching()
config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [1], "optional": True})
config.add_output({"name": "B", "data_type": "TYPE_INT32", "dims": [-1]})
config.set_model_transaction_policy({"decoupled": True})
assert config.as_dict() is config.as_dict() and pb_utils.get_model_dir()
assert type(config) is pb_utils.ModelConfig
return config
"""
        self.assertEqual(self.complete(body), {
            "name": "m", "max_batch_size": 4, "dynamic_batching": {}, "model_transaction_policy": {"decoupled": True},
            "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1], "optional": True}],
            "output": [{"name": "B", "data_type": "TYPE_INT32", "dims": [-1]}],
        })

    def test_what_is_there_is_merged_by_name(self):
        body = "config.add_input({'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [2]})\nconfig.set_max_batch_size(8)\nreturn config"
        config = {"input": [{"name": "A", "data_type": "TYPE_INVALID", "dims": []}], "max_batch_size": 8}
        found = self.complete(body, config)
        self.assertEqual(found["input"], [{"name": "A", "data_type": "TYPE_FP32", "dims": [2]}])

    def test_without_the_function_nothing_changes(self):
        server = self.serve(model("pass"), mode="complete", start=False)
        self.assertEqual(json.loads(server.expect("main", ws.COMPLETED).str32()), server.settings["config"])

    def test_another_object_is_refused(self):
        wanted = "auto_complete_config function in model 'm_0_0' must return a valid pb.ModelConfig object."
        for value in ("None", "config.as_dict()"):
            self.assertEqual(self.complete("return " + value), wanted)

    def test_contradictions_are_refused(self):
        tensor = {"name": "A", "data_type": "TYPE_FP32", "dims": [1]}
        add = "config.add_input(%r)"
        have = {"input": [tensor], "output": [tensor], "max_batch_size": 4}
        for body, config, wanted in [
            ("config.set_max_batch_size(2)", have, (
                "configuration specified max_batch_size 4, but in auto-complete-config function for model 'm' specified max_batch_size 2"
            )),
            ("config.set_dynamic_batching()", {"sequence_batching": {}}, (
                "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for "
                "model 'm' tries to set scheduling_choice as 'dynamic_batching'"
            )),
            (add % {"name": "A", "data_type": "TYPE_FP32"}, {}, "input 'A' in auto-complete-config function for model 'm' is missing 'dims' property."),
            (add % {"name": "A", "dims": [1]}, {}, "input 'A' in auto-complete-config function for model 'm' is missing 'data_type' property."),
            (add % {"dims": [1]}, {}, "input in auto-complete-config function for model 'm' is missing 'name' property."),
            (add % dict(tensor, extra=1), {}, (
                "input 'A' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type', 'dims' and 'optional'."
            )),
            ("config.add_output(%r)" % dict(tensor, optional=True), {}, (
                "output 'A' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type' and 'dims'."
            )),
            (add % dict(tensor, data_type="TYPE_FP64"), have, (
                "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'A', model provides TYPE_FP64"
            )),
            ("config.add_output(%r)" % dict(tensor, dims=[2]), have, (
                "model 'm', tensor 'A': the model expects dims [2] but the model configuration specifies dims [1]"
            )),
            (add % dict(tensor, optional=True), {"input": [dict(tensor, optional=False)]}, (
                "model 'm', tensor 'A': the model expects optional True but the model configuration specifies optional False"
            )),
            ("config.set_model_transaction_policy({'decoupled': True})", {"model_transaction_policy": {"decoupled": False}}, (
                "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'."
            )),
            ("config.set_model_transaction_policy({'x': True})", {}, (
                "model transaction property in auto-complete-config function for model 'm' contains property other than 'decoupled'."
            )),
        ]:
            with self.subTest(body=body):
                self.assertEqual(self.complete(body + "\nreturn config", config), "ValueError: " + wanted)


if __name__ == "__main__":
    unittest.main()
