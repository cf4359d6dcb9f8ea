"""The steps of a model's life, its threads, its children, and all interpreters of the machine."""

import json
import os
import signal
import struct
import subprocess
import sys

import numpy as np

import worker.server as ws
from worker.case import IDENTITY, IMPORTS, PREFIX, WorkerTest, X, model
from worker.server import text_tensor


class Life(WorkerTest):
    """The steps of a model's life."""

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

    def test_the_process_is_named_after_its_instance(self):
        directory = "/proc/%d/" % self.serve(model("pass")).process.pid
        with open(directory + "comm") as comm, open(directory + "cmdline", "rb") as title:
            self.assertEqual((comm.read(), title.read()), ("m_0_0\n", b"deuteron: m_0_0\0"))

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

    def test_a_coroutine_that_exits_fails_its_batch_alone(self):
        source = model("async def execute(self, requests):\n    sys.exit(3)")
        for concurrency in [[1, 1], [1, 8]]:
            server = self.serve(source, concurrency=concurrency)
            for _ in range(2):
                self.assertTrue(self.failure(server).startswith(PREFIX + "SystemExit: 3"))
            self.assertFalse(server.slots)

    def test_a_task_that_ends_the_loop_ends_the_process(self):
        source = """
async def execute(self, requests):
    import asyncio
    asyncio.ensure_future(self.leave())
    await asyncio.sleep(60)

async def leave(self):
    sys.exit(3)
"""
        for concurrency in [[1, 1], [1, 8]]:
            server = self.serve(model(source), concurrency=concurrency)
            server.send_execute({"IN": X})
            with self.assertRaisesRegex(EOFError, "SystemExit: 3"):
                if concurrency == [1, 8]:
                    server.awaits()
                server.responses()

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

    def test_nothing_is_said_after_the_end(self):
        # Senders and arrays that the model has kept end with the process.
        source = model(
            """
kept = []
def execute(self, requests):
    cycle = [requests[0].get_response_sender(), requests[0].inputs()[0].as_numpy()]
    cycle.append(cycle)
    self.kept.append(cycle)
def finalize(self):
    self.family = pb_utils.InferenceResponse
"""
        )
        server = self.serve(source, decoupled=True)
        for _ in range(3):
            server.execute({"IN": X})
        self.assertEqual(server.finalize(), ("", ""))
        self.assertEqual(server.process.returncode, 0)

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
        # The processes of all methods but `fork` import the model anew, and with it the public module.
        source = (
            IMPORTS
            + "def double(x): return 2 * x\n"
            + model(
                """
def execute(self, requests):
    import multiprocessing
    method = requests[0].inputs()[0].as_numpy()[0].decode()
    with multiprocessing.get_context(method).Pool(2) as pool:
        values = pool.map(double, [1, 2, 3])
    output = pb_utils.Tensor("OUT", np.array(values, np.int64))
    return [pb_utils.InferenceResponse([output])]
"""
            )
        )
        server = self.serve(source, "IN:BYTES")
        for method in (b"fork", b"spawn", b"forkserver"):
            with self.subTest(method=method):
                outputs = server.ask({"IN": text_tensor((1,), method)})
                self.assertEqual(outputs["OUT"].tolist(), [2, 4, 6])

    def test_all_interpreters_of_the_machine(self):
        # The real thing on each python3 that has numpy; WORKER_PYTHONS may name more of them.
        found = {sys.executable, *filter(None, os.environ.get("WORKER_PYTHONS", "").split(os.pathsep))}
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            found.update(
                os.path.join(folder, name) for name in ["python3"] + ["python3.%d" % minor for minor in range(8, 20)]
            )
        ran = []
        program = "import sys, numpy; print(sys.version_info >= (3, 8), sys.version.split()[0], numpy.__version__)"
        for path in sorted(filter(os.path.exists, found)):
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
                    ran.append(" ".join(output.stdout.decode().split()[1:]))
        print("interpreters that have numpy, with its release:", ran)
        self.assertTrue(ran)
