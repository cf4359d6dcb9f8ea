"""`Tensor.empty`: outputs that the model writes where they are sent from."""

import numpy as np

import worker.server as ws
from worker.case import PREFIX, WorkerTest, X, model
from worker.server import text_tensor

# Runs the text that is its input, in which `empty` makes an output and `kept` outlives the batch.
RUN = """
kept = {}
def execute(self, requests):
    responses = []
    for request in requests:
        code = request.inputs()[0].as_numpy()[0].decode()
        names = {"pb": pb_utils, "np": np, "kept": self.kept, "request": request, "out": [], "threading": threading}
        names["empty"] = lambda name="OUT", shape=(16,), dtype=np.float32: pb_utils.Tensor.empty(name, shape, dtype)
        exec(code, names)
        responses.append(None if names["out"] is None else pb_utils.InferenceResponse(names["out"]))
        names.clear()
    return responses
"""

FILLED = "t = empty()\nt.as_numpy()[:] = np.arange(16)\n"
SIXTEEN = list(range(16))


def code(text):
    return {"CODE": text_tensor((1,), text.encode())}


class Placed(WorkerTest):
    """`Tensor.empty`: outputs that the model writes where they are sent from."""

    def runner(self, **settings):
        return self.serve(model(RUN), "CODE:BYTES", "OUT:FP32 SUM:FP32", **settings)

    def run_all(self, server, *texts):
        """The outputs of a batch, request by request, as lists."""
        found = server.execute(*map(code, texts))
        self.assertIsNone(found.text)
        return [[(name, array.tolist()) for name, array in response.outputs] for response in found.responses]

    def test_an_output_is_sent_from_its_place_and_not_copied(self):
        server = self.runner()
        self.assertEqual(self.run_all(server, FILLED + "out.append(t)"), [[("OUT", SIXTEEN)]])
        self.assertEqual(server.placed, [(1, 0, 64, 64)])
        self.assertEqual(server.response_slots, [1], "no span but its own")
        # Its place is free with the next batch: the server released the slot, and nothing refers to the array.
        for slot in (2, 3):
            self.assertEqual(self.run_all(server, FILLED + "out.append(t)"), [[("OUT", SIXTEEN)]])
            self.assertEqual(server.placed[-1], (slot, 0, 64, 64))

    def test_its_array_is_writeable_until_it_is_sent(self):
        server = self.runner()
        text = FILLED + "kept['t'], kept['part'] = t, t.as_numpy()[:2]\nassert t.as_numpy().flags.writeable\nout.append(t)"
        self.run_all(server, text)
        failure = server.execute(code("kept['t'].as_numpy()[0] = 9")).text
        self.assertIn("ValueError: assignment destination is read-only", failure)
        # One that was not asked for is not sent.
        server.execute((code(FILLED + "kept['other'] = t\nout.append(t)"), None, ["SUM"]))
        self.assertEqual(self.run_all(server, "kept['other'].as_numpy()[0] = 9\nout.append(kept['other'])")[0][0][1][0], 9)

    def test_shapes_and_datatypes(self):
        server = self.serve(model(RUN), "CODE:BYTES", "OUT:FP32 SUM:FP32")
        for shape, dtype, want in [
            ("5", "'int8'", "(5,) int8"),
            ("(2, 3)", "np.float64", "(2, 3) float64"),
            ("[2, np.int64(3)]", "bool", "(2, 3) bool"),
            ("()", "np.float16", "() float16"),
            ("(0, 3)", "np.uint8", "(0, 3) uint8"),
        ]:
            text = "t = empty('OUT', %s, %s)\nt.as_numpy()[...] = 1\nassert t.is_cpu() and t.shape() == list(t.as_numpy().shape)\n"
            found = server.execute(code(text % (shape, dtype) + "out.append(t)"))
            self.assertIsNone(found.text)
            (_, array), = found.responses[0].outputs
            self.assertEqual("%s %s" % (array.shape, array.dtype), want)
            self.assertTrue((array == 1).all())
        self.assertEqual(len(server.placed), 4, "one without elements has no place")

    def test_wrong_arguments(self):
        server = self.runner()
        for text, want in [
            ("empty('OUT', 3, object)", "TritonModelException: Tensor.empty cannot make a tensor of strings: its size depends"),
            ("empty('OUT', 3, 'S5')", "TritonModelException: Tensor.empty cannot make a tensor of strings: its size depends"),
            ("empty('OUT', 3, np.complex64)", "TritonModelException: NumPy dtype is not supported."),
            ("empty('', 3)", "TritonModelException: Tensor name cannot be an empty string."),
            ("empty(3, 3)", "TypeError: empty(): incompatible function arguments."),
            ("empty('OUT', 1.5)", "TypeError: empty(): incompatible function arguments."),
            ("empty('OUT', 3, None)", "TypeError: empty(): incompatible function arguments."),
            ("empty('OUT', 3, 'no type')", "TypeError: empty(): incompatible function arguments."),
            ("empty('OUT', (2, -1))", "ValueError: negative dimensions are not allowed: Tensor.empty got the shape [2, -1]"),
        ]:
            with self.subTest(text=text):
                failure = server.execute(code(text)).text
                self.assertTrue(failure.startswith(PREFIX), failure)
                self.assertIn(want, failure)
        self.assertEqual(server.response_slots, [])

    def test_several_responses_have_outputs_of_both_kinds(self):
        server = self.runner()
        both = FILLED + "s = pb.Tensor('SUM', np.ones(2, np.float32))\n"
        first, second, third, fourth = self.run_all(
            server,
            both + "out += [t, s]",
            both + "out += [s, t]",
            both + "u = empty('SUM', 1)\nu.as_numpy()[0] = 7\nout += [t, u]",
            "out.append(pb.Tensor('OUT', np.ones(1, np.float32)))",
        )
        self.assertEqual(first, [("OUT", SIXTEEN), ("SUM", [1, 1])])
        self.assertEqual(second, [("SUM", [1, 1]), ("OUT", SIXTEEN)])
        self.assertEqual(third, [("OUT", SIXTEEN), ("SUM", [7])])
        self.assertEqual(fourth, [("OUT", [1])])
        self.assertEqual(len(server.placed), 4)
        self.assertEqual(len(set(server.response_slots)), 5, "one span more: of those that were copied")

    def test_parameters_of_a_response(self):
        server = self.runner()
        text = FILLED + "request.get_response_sender().send(pb.InferenceResponse([t], parameters={'k': 1}), 1)\nout = None"
        server.send_execute(code(text))
        sent = server.sent().response
        self.assertEqual((sent.parameters, sent.outputs[0][1].tolist()), ('{"k": 1}', SIXTEEN))

    def test_one_that_is_not_sent_is_free_again(self):
        server = self.runner()
        for _ in range(3):
            self.run_all(server, "empty()")
        self.run_all(server, "kept['t'] = empty()")
        self.assertEqual(self.run_all(server, FILLED + "out.append(t)"), [[("OUT", SIXTEEN)]])
        self.assertEqual(server.placed, [(5, 0, 128, 64)], "the first place is kept")
        # It goes with a batch that fails.
        self.run_all(server, "kept.clear()")
        self.assertIn("ZeroDivisionError", server.execute(code("t = empty()\n1 / 0")).text)
        self.run_all(server, FILLED + "out.append(t)")
        self.assertEqual(server.placed[-1][2], 64)

    def test_a_place_is_not_used_again_while_the_model_or_the_server_needs_it(self):
        server = self.runner()
        self.run_all(server, FILLED + "kept['part'] = t.as_numpy()[3:]\nout.append(t)")
        # The server no longer needs the slot, but a part of the array is left.
        self.run_all(server, FILLED + "out.append(t)")
        self.assertEqual([place[2] for place in server.placed], [64, 128])
        self.run_all(server, "kept['part'].base[:] = 0\nkept.clear()")
        self.run_all(server, FILLED + "out.append(t)")
        self.assertEqual(server.placed[-1][2], 64)
        # The model no longer needs it, but the server has not released it.
        server.response_slots.clear()
        self.run_all(server, FILLED + "out.append(t)")
        self.assertEqual(server.placed[-1][2], 128)

    def test_one_that_is_sent_twice_is_free_when_both_were_released(self):
        server = self.runner()
        found = self.run_all(server, FILLED + "kept['t'] = t\nout.append(t)", "out.append(kept['t'])")
        self.assertEqual(found, [[("OUT", SIXTEEN)]] * 2)
        self.assertEqual(server.response_slots, [1, 1])
        self.run_all(server, "out.append(kept.pop('t'))")
        self.assertEqual(server.placed, [(1, 0, 64, 64)] * 3)
        (last,) = server.response_slots
        server.response_slots.clear()
        self.run_all(server, FILLED + "out.append(t)")
        self.assertEqual(server.placed[-1][2], 128, "the third message has it")
        server.response_slots.append(last)
        self.run_all(server, FILLED + "out.append(t)")
        self.assertEqual(server.placed[-1][2], 64)

    def test_one_is_sent_by_a_sender_behind_execute(self):
        server = self.runner()
        text = FILLED + "kept['t'], kept['sender'] = t, request.get_response_sender()\nout = None"
        server.execute(code(text))
        send = "kept.pop('sender').send(pb.InferenceResponse([kept.pop('t')]), 1)"
        server.send_execute(code("thread = threading.Thread(target=lambda: %s)\nthread.start()\nthread.join()" % send))
        sent = server.sent()
        self.assertEqual((sent.flags, sent.response.outputs[0][1].tolist()), (1, SIXTEEN))
        self.assertIsNone(server.responses().text)

    def test_one_is_the_input_of_a_call(self):
        server = self.runner()
        text = FILLED + "call = pb.InferenceRequest(model_name='other', inputs=[t, pb.Tensor('B', np.ones(1, np.float32))], "
        text += "requested_output_names=['OUT'])\nout.append(call.exec().output_tensors()[0])"
        server.send_execute(code(text))
        call = server.call()
        self.assertEqual([(name, array.tolist()) for name, array in call.inputs], [
            ("OUT", SIXTEEN), ("B", [1]),
        ])
        self.assertEqual(server.placed, [(1, 0, 64, 64)])
        server.reply_call(call, [("OUT", X)])
        np.testing.assert_array_equal(server.responses().responses[0].outputs[0][1], X)

    def test_one_outlives_its_region(self):
        server = self.runner(region_sizes=(1 << 20, 8192))
        self.run_all(server, FILLED + "kept['t'] = t")
        server.send_execute(code("t = empty('OUT', 4096)\nt.as_numpy()[:] = 1\nout += [t]"))
        call, size, must_grow = server.expect("aux", ws.SPACE).take("QQB")
        self.assertEqual((size, must_grow), (16384, 1))
        self.assertEqual(server.add_region(1, 1 << 20), 1)
        server.reply_space(call, 1)
        self.assertTrue((server.responses().responses[0].outputs[0][1] == 1).all())
        self.run_all(server, "out.append(kept.pop('t'))")
        self.assertEqual([place[1] for place in server.placed], [1, 0])

    def test_an_older_region_goes_with_its_last_place(self):
        server = self.runner(region_sizes=(1 << 20, 8192))
        for number, size in [(1, 1 << 16), (2, 1 << 17)]:
            server.send_execute(code("kept[%d] = empty('OUT', %d)" % (number, size // 8)))
            call = server.expect("aux", ws.SPACE).take("QQB")[0]
            server.add_region(1, size)
            server.reply_space(call, 1)
            self.assertIsNone(server.responses().text)
        server.settle()
        self.assertFalse(server.received["aux"])
        self.run_all(server, "kept.clear()")
        self.run_all(server, "empty()")
        self.assertEqual(server.expect("aux", ws.REGION_DROPPED).take("H"), 1)

    def test_no_room(self):
        server = self.runner(region_sizes=(1 << 20, 8192))
        server.send_execute(code("empty('OUT', 1 << 20)"))
        server.reply_space(server.expect("aux", ws.SPACE).take("QQB")[0], 2, "4194304 bytes do not fit")
        self.assertIn("TritonModelException: 4194304 bytes do not fit", server.responses().text)

    def test_a_cycle_is_collected_before_more_memory_is_asked_for(self):
        source = "import gc\ngc.set_threshold(100000)\n" + model(RUN)
        server = self.serve(source, "CODE:BYTES", "OUT:FP32", region_sizes=(1 << 20, 8192))
        for _ in range(20):
            self.run_all(server, "t = empty('OUT', 1024)\ncycle = [t.as_numpy()]\ncycle.append(cycle)")
        self.assertFalse(server.received["aux"])

    def test_other_libraries_write_it(self):
        server = self.runner()
        text = FILLED + "other = pb.Tensor.from_dlpack('SUM', t)\nother.as_numpy()[0] = 5\nout.append(t)"
        self.assertEqual(self.run_all(server, text)[0][0][1][0], 5)
