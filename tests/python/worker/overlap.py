"""Several batches at once in one process: coroutines, and functions in threads."""

import struct

import numpy as np

import worker.server as ws
from worker.case import IMPORTS, PREFIX, WorkerTest, model
from worker.server import text_tensor

# Runs the Python text that is its input, and answers with the value of `result`.
DEED = (
    IMPORTS
    + """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.inside = 0
        self.opened = asyncio.Event()
        self.barrier = threading.Barrier(3)

    %s

    def finalize(self):
        print("finalized with", self.inside)

    def call(self, name):
        inputs = [pb_utils.Tensor("A", np.float32([1, 2]))]
        return pb_utils.InferenceRequest(model_name=name, inputs=inputs, requested_output_names=[])
"""
)
COROUTINE = DEED % (
    """async def execute(self, requests):
        code = requests[0].inputs()[0].as_numpy()[0].decode()
        names = dict(globals(), self=self, requests=requests)
        exec("async def run():\\n    result = 'done'\\n    " + code.replace("\\n", "\\n    ") + "\\n    return result", names)
        try:
            text = np.array([str(await names["run"]())], np.object_)
        finally:
            names.clear()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]"""
)
FUNCTION = DEED % (
    """def execute(self, requests):
        code = requests[0].inputs()[0].as_numpy()[0].decode()
        names = dict(globals(), self=self, requests=requests, result="done")
        exec(code, names)
        text = np.array([str(names.pop("result"))], np.object_)
        names.clear()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]"""
)


class Overlap(WorkerTest):
    """Several batches at once."""

    def coroutines(self, source=COROUTINE, **settings):
        return self.serve(source, "CODE:BYTES", "TEXT:BYTES", concurrency=[1, 8], **settings)

    def threads(self, source=FUNCTION, count=3):
        return self.serve(source, "CODE:BYTES", "TEXT:BYTES", concurrency=[count, 8])

    def begin(self, server, code, count=1):
        """Sends a batch; returns its number."""
        return server.send_execute(*[{"CODE": text_tensor((1,), code.encode())}] * count)

    def ended(self, server):
        """The next batch that has ended: its number, whether its inputs are free, and its result or error."""
        found = server.responses()
        if found.text is not None:
            return found.batch, found.inputs_free, found.text
        return found.batch, found.inputs_free, found.responses[0].outputs[0][1][0].decode()

    def begun(self, server):
        return struct.unpack("<Q", server.response_regions[0].map[:8])[0]

    def test_coroutines_are_inside_together_and_end_in_any_order(self):
        server = self.coroutines()
        inside = "self.inside += 1\nmine = self.inside\nawait self.opened.wait()\n"
        for _ in range(7):
            number = self.begin(server, inside + "await asyncio.sleep(0.02 * (8 - mine))\nresult = mine")
            self.assertEqual((server.awaits(), self.begun(server)), (number, number))
        # The last does not await: it ends first, and lets the others go on.
        self.begin(server, "self.inside += 1\nself.opened.set()\nresult = self.inside")
        ended = [self.ended(server) for _ in range(8)]
        self.assertEqual(ended[0], (8, 1, "8"))
        self.assertEqual(sorted(ended), [(number, 1, str(number)) for number in range(1, 9)])
        self.assertFalse(server.slots)

    def test_a_coroutine_that_does_not_await_keeps_its_turn(self):
        server = self.coroutines()
        self.begin(server, "time.sleep(0.2)")
        self.begin(server, "result = 'second'")
        server.wait_until(lambda: self.begun(server) == 1)
        self.assertEqual([self.ended(server), self.ended(server)], [(1, 1, "done"), (2, 1, "second")])
        self.assertEqual(self.begun(server), 2)

    def test_what_fails_in_one_coroutine_fails_its_batch_alone(self):
        server = self.coroutines()
        self.begin(server, "await self.opened.wait()\nraise ValueError('boom')")
        self.assertEqual(server.awaits(), 1)
        self.begin(server, "await self.opened.wait()\nasyncio.current_task().cancel()\nawait asyncio.sleep(9)")
        self.assertEqual(server.awaits(), 2)
        self.begin(server, "await self.opened.wait()\nsys.exit(3)")
        self.assertEqual(server.awaits(), 3)
        self.begin(server, "await self.opened.wait()")
        self.assertEqual(server.awaits(), 4)
        self.begin(server, "self.opened.set()")
        ended = sorted(self.ended(server) for _ in range(5))
        # A task that was cancelled keeps its error, and with it the inputs, until it is gone.
        self.assertEqual([(n, is_free) for n, is_free, _ in ended if n != 2], [(1, 1), (3, 1), (4, 1), (5, 1)])
        texts = [text for _, _, text in ended]
        for text, start in zip(texts, ["ValueError: boom\n\nAt:\n", "CancelledError: ", "SystemExit: 3"]):
            self.assertTrue(text.startswith(PREFIX + start), text)
        self.assertEqual(texts[3:], ["done", "done"])
        server.wait_until(lambda: not server.slots)

    def test_only_the_batch_that_keeps_its_inputs_keeps_their_memory(self):
        server = self.coroutines()
        self.begin(server, "self.kept = requests\nawait self.opened.wait()")
        self.assertEqual(server.awaits(), 1)
        self.begin(server, "self.opened.set()")
        self.assertEqual(sorted([self.ended(server), self.ended(server)]), [(1, 0, "done"), (2, 1, "done")])
        self.assertEqual(len(server.slots), 1)
        self.begin(server, "del self.kept")
        self.assertEqual(self.ended(server), (3, 1, "done"))
        server.wait_until(lambda: not server.slots)

    def calls_of(self, server, codes, is_async):
        """The parents and flags of the calls that batches make, by the name of the called model."""
        parents = {}

        def answer(reader):
            call = server.read_call(reader)
            parents[call.model] = (call.parent, call.decoupled)
            server.reply_call(call)

        server.answers[ws.BLS_CALL] = answer
        for code, count in codes:
            self.begin(server, code, count)
            if is_async:
                server.awaits()
        self.begin(server, "self.opened.set()" if is_async else "self.barrier.wait()")
        ended = sorted(self.ended(server) for _ in range(len(codes) + 1))
        self.assertEqual([text for _, _, text in ended], ["done"] * len(ended))
        return parents

    def test_calls_of_coroutines_are_made_for_their_own_requests(self):
        one = "await self.opened.wait()\nawait asyncio.gather(self.call('a').async_exec(), self.call('b').async_exec())"
        two = "await self.opened.wait()\nawait asyncio.get_running_loop().create_task(run2())"
        two = "async def run2(): await self.call('c').async_exec()\n" + two
        three = "await self.opened.wait()\nself.call('d').exec()\nrequest = self.call('e')"
        three += "\nawait asyncio.get_running_loop().run_in_executor(None, request.exec)"
        parents = self.calls_of(self.coroutines(), [(one, 1), (two, 2), (three, 1)], True)
        # A thread of the model's own is nobody's.
        self.assertEqual(parents, {"a": (1, 0), "b": (1, 0), "c": (2, 2), "d": (4, 0), "e": (0, 0)})

    def test_functions_run_in_threads(self):
        server = self.threads()
        code = "self.barrier.wait()\nresult = threading.current_thread().name"
        for _ in range(3):
            self.begin(server, code)
        ended = [self.ended(server) for _ in range(3)]
        self.assertEqual(sorted(name for _, _, name in ended), ["execute-0", "execute-1", "execute-2"])
        self.assertEqual((sorted(n for n, _, _ in ended), [free for _, free, _ in ended]), ([1, 2, 3], [1, 1, 1]))
        self.assertEqual(self.begun(server), 3)
        # One after the other they need one thread.
        server = self.threads()
        for _ in range(5):
            self.begin(server, "result = threading.current_thread().name")
            self.assertEqual(self.ended(server)[2], "execute-0")

    def test_an_exception_in_a_thread_fails_its_batch_with_the_frames_of_the_model(self):
        server = self.threads(model("def execute(self, requests):\n    raise ValueError('boom')"))
        text = self.failure(server, {"CODE": text_tensor((1,), b"")}).replace(server.version, "DIR")
        self.assertEqual(text, PREFIX + "ValueError: boom\n\nAt:\n  DIR/model.py(12): execute\n")
        self.assertFalse(server.slots)

    def test_calls_of_threads_are_made_for_their_own_requests(self):
        one = "self.barrier.wait()\nself.call('a').exec()"
        two = "self.barrier.wait()\nself.call('b').exec()\nasync def run(): await self.call('c').async_exec()"
        two += "\nasyncio.run(run())"
        parents = self.calls_of(self.threads(), [(one, 1), (two, 2)], False)
        self.assertEqual(parents, {"a": (1, 0), "b": (2, 2), "c": (2, 2)})

    def test_a_function_that_returns_a_coroutine_is_waited_for_in_its_thread(self):
        source = FUNCTION.replace("def execute(", "def execute(self, requests): return self.run(requests)\n    async def run(")
        server = self.threads(source, count=2)
        self.begin(server, "self.opened = self.opened or 1\nresult = threading.current_thread().name[:6]")
        self.assertEqual(self.ended(server), (1, 1, "Thread"))

    def test_senders_answer_while_others_run(self):
        sender = "self.opened.wait() if False else None\nrequests[0].get_response_sender().send("
        sender += "pb_utils.InferenceResponse([pb_utils.Tensor('TEXT', np.array(['sent'], np.object_))]), 1)"
        source = FUNCTION.replace("return [", "return [None] if 'sender' in code else [")
        server = self.threads(source)
        self.begin(server, "self.barrier.wait()\nself.barrier.wait()")
        self.begin(server, "self.barrier.wait()\n" + sender)
        self.begin(server, "self.barrier.wait()\nself.barrier.wait()")
        self.assertEqual((server.sent().request, server.responses().batch), (2, 2))
        self.begin(server, "self.barrier.wait()")
        self.assertEqual(sorted(self.ended(server) for _ in range(3)), [(n, 1, "done") for n in (1, 3, 4)])

    def test_finalize_waits_for_what_runs(self):
        for server in [self.coroutines(), self.threads()]:
            code = "time.sleep(0.2)\nself.inside += 1"
            if server.settings["concurrency"] == [1, 8]:
                code = "await asyncio.sleep(0.2)\nself.inside += 1"
            self.begin(server, code)
            if "await" in code:
                server.awaits()
            server.send_main(ws.FINALIZE)
            self.assertEqual(self.ended(server), (1, 1, "done"))
            server.expect("main", ws.FINALIZED)
            self.assertIn("finalized with 1", server.end_text())

    def test_a_bound_of_one_runs_in_turn_on_the_main_thread(self):
        server = self.serve(FUNCTION, "CODE:BYTES", "TEXT:BYTES", concurrency=[1, 1])
        self.begin(server, "result = threading.current_thread() is threading.main_thread()")
        self.assertEqual(self.ended(server)[2], "True")
        server = self.serve(COROUTINE, "CODE:BYTES", "TEXT:BYTES", concurrency=[1, 1])
        self.begin(server, "await asyncio.sleep(0)")
        self.assertEqual(self.ended(server)[2], "done")

    def test_outputs_that_need_memory_at_the_same_time_grow_it_once(self):
        source = FUNCTION.replace("np.array([str(names.pop(\"result\"))], np.object_)", "np.zeros(names.pop('result'), np.uint8)")
        server = self.threads(source)
        asked = []

        def grow(reader):
            call, size, must_grow = reader.take("QQB")
            asked.append(must_grow)
            if must_grow:
                server.add_region(1, 1 << 24)
            server.reply_space(call, 1 if must_grow else 0)

        server.answers[ws.SPACE] = grow
        for _ in range(3):
            self.begin(server, "self.barrier.wait()\nresult = 3 << 20")
        found = [server.responses() for _ in range(3)]
        self.assertEqual([len(one.responses[0].outputs[0][1]) for one in found], [3 << 20] * 3)
        self.assertEqual(sum(asked), 1)
