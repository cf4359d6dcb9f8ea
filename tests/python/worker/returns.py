"""Results and exceptions of `execute`, and their messages to the server."""

import numpy as np

import worker.server as ws
from worker.case import IMPORTS, PREFIX, WorkerTest, X, model
from worker.server import text_tensor


class Returns(WorkerTest):
    """Results of `execute`, and the client's view of them."""

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
        self.assertEqual(
            [(r.kind, r.code, r.text) for r in found], [(2, 3, "no"), (2, 7, "no"), (2, 1, "bad"), (1, 0, "")]
        )

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
        code = "exec(requests[0].inputs()[0].as_numpy()[0].decode())"
        server = self.returned(code, inputs="CODE:BYTES")
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
                request = {"CODE": text_tensor((1,), statement.encode())}
                text = self.failure(server, request)
                self.assertTrue(text.startswith(PREFIX + (wanted or "JSONDecodeError: ")), text)
                self.assertIn("\n\nAt:\n", text)
                self.assertTrue(text.endswith("/model.py(12): execute\n"), text)
                self.assertNotIn("deuteron", text)
                # It goes on.
                self.assertEqual(self.failure(server, request), text)

    def test_a_wrong_number_of_responses(self):
        text = self.failure(self.returned("return []"))
        self.assertEqual(
            text,
            PREFIX
            + (
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
            ),
        )

    def test_what_is_no_list(self):
        text = self.failure(self.returned("return ()"))
        self.assertEqual(text, PREFIX + "Expected a list in the execute return, found type '<class 'tuple'>'.")

    def test_a_wrong_element(self):
        text = self.failure(self.returned("return [5]"))
        self.assertEqual(
            text,
            PREFIX
            + (
                "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
            ),
        )

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
            self.assertEqual(
                text,
                PREFIX
                + ("Python model 'm_0_0' is using the decoupled mode and the execute function must return None."),
            )

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
