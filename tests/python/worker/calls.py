"""Requests to other models."""

import struct

import numpy as np

import worker.server as ws
from worker.case import EVALUATE, IMPORTS, WorkerTest, X, model
from worker.server import details, text_tensor


class Calls(WorkerTest):
    """Requests to other models."""

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
        self.assertEqual(
            (call.parent, call.decoupled, call.model, call.version, call.outputs), (1, 0, "other", -1, ["O"])
        )
        self.assertEqual([name for name, _ in call.inputs], ["A"])
        self.assertEqual(
            call.details,
            {
                "id": "",
                "correlation": None,
                "flags": 0,
                "timeout": 0,
                "priority": 0,
                "parameters": "",
                "trace": "",
            },
        )
        server.wait_until(lambda: not server.slots)

    def test_everything_that_a_request_says_is_passed_on(self):
        server = self.evaluator()
        code = (
            "pb.InferenceRequest('id', 5, [r.inputs()[2], r.inputs()[1]], [], 'other', 3, 1, 2500, "
            "pb.PreferredMemory(pb.TRITONSERVER_MEMORY_GPU), r.trace(), {'a': 'b'}).exec().has_error()"
        )
        brain = ws.Tensor(14, (1,), b"ab")
        text, calls = self.answered(
            server,
            code,
            lambda call: server.reply_call(call),
            details(trace="context"),
            A=X,
            B=text_tensor((1,), b"word"),
        )
        self.assertEqual(text, "False")
        call = calls[0]
        self.assertEqual((call.version, call.outputs, call.parent), (3, [], 1))
        self.assertEqual(
            call.details,
            {
                "id": "id",
                "correlation": 5,
                "flags": 1,
                "timeout": 2500,
                "priority": 0,
                "parameters": '{"a": "b"}',
                "trace": "context",
            },
        )
        self.assertEqual(call.inputs[0][1].tolist(), [b"word"])
        np.testing.assert_array_equal(call.inputs[1][1], X)
        code = "pb.InferenceRequest(correlation_id='text', inputs=[r.inputs()[1]], requested_output_names=['A', 'B'], model_name='x').exec().has_error()"
        _, calls = self.answered(server, code, lambda call: server.reply_call(call), C=brain)
        self.assertEqual((calls[0].details["correlation"], calls[0].outputs), ("text", ["A", "B"]))
        self.assertEqual(calls[0].inputs[0][1], brain)

    def test_integers_of_numpy_are_integers(self):
        server = self.evaluator()
        code = (
            "pb.InferenceRequest(np.str_('id'), np.%s(5), [], [], 'other', np.int8(3), np.uint8(1), np.int16(2500), "
            "parameters={'a': np.int64(-7), 'b': np.bool_(True), 'c': np.str_('d')}).exec().has_error()"
        )
        for kind in ["int64", "uint64", "int32", "uint8"]:
            text, calls = self.answered(server, code % kind, lambda call: server.reply_call(call))
            known = calls[0].details
            told = (text, calls[0].version, *(known[name] for name in ("id", "correlation", "flags", "timeout")))
            self.assertEqual(told, ("False", 3, "id", 5, 1, 2500), kind)
            self.assertEqual(known["parameters"], '{"a": -7, "b": true, "c": "d"}')
        request = "pb.InferenceRequest(model_name='x', inputs=[], requested_output_names=[], correlation_id=%s)"
        self.assertEqual(
            self.evaluate(server, request % "np.float32(1)"),
            "TritonModelException: Correlation ID must be integer or string",
        )
        self.assertTrue(self.evaluate(server, request % "np.int64(-1)").startswith("TypeError: __init__()"))

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
        code = (
            "x = %s.exec()\nx.has_error(), x.error().message(), x.error().code().name, x.output_tensors()" % self.CALL
        )
        found, _ = self.answered(server, code, lambda call: server.reply_call(call, error=(4, text)))
        self.assertEqual(found, repr((True, text, "UNAVAILABLE", [])))
        # An argument that cannot be sent is an error too.
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
        server = self.serve(
            model(
                "def finalize(self):\n    try:\n        %s.exec()\n    except pb_utils.TritonModelException as e:\n        print(e)"
                % call
            )
        )
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

        code = (
            "i = %s.exec(decoupled=True)\nf = lambda: [[t.as_numpy().tolist() for t in x.output_tensors()] for x in i]\nf(), f(), type(i)"
            % self.CALL
        )
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
        code = (
            "i = %s.exec(decoupled=True)\nmodel.kept = next(i).output_tensors()[0].as_numpy()\nlen(model.kept)"
            % self.CALL
        )
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
        code = (
            "i = %s.exec(decoupled=True)\nnext(i)\ni.cancel()\ni.cancel()\nlast = next(i)\ni.cancel()\nlast.error().message(), last.error().code().name"
            % self.CALL
        )
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
        code = (
            "import asyncio\nasync def f(call): return [x.has_error() for x in await asyncio.gather(call.async_exec(), call.async_exec())]\nasyncio.run(f(%s))"
            % self.CALL
        )
        text, calls = self.answered(server, code, lambda call: server.reply_call(call))
        self.assertEqual((text, len(calls)), ("[False, False]", 2))
        self.assertEqual(self.evaluate(server, self.CALL + ".async_exec()"), "RuntimeError: no running event loop")

    def test_a_call_to_several_models_from_a_decoupled_coroutine(self):
        source = self.ASYNC.replace(
            "text = repr(await self.work())\n", "sender = requests[0].get_response_sender()\n"
        ).replace(
            'return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([text], object))])]',
            "sender.send(await self.call().async_exec(), 1)",
        )
        server = self.serve(source, "IN:FP32", "O:FP32", decoupled=True)
        server.execute({"IN": X})
        server.execute({"IN": X})
        for call in [server.call(), server.call()]:
            server.reply_call(call, [("O", X)])
        found = [server.sent() for _ in range(2)]
        self.assertEqual(sorted((sent.request, sent.flags) for sent in found), [(1, 1), (2, 1)])
        np.testing.assert_array_equal(found[1].response.outputs[0][1], X)
