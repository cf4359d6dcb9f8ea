"""Requests, responses, errors, and the log."""

import json

import numpy as np

import worker.server as ws
from worker.case import IDENTITY, WorkerTest, X, model
from worker.server import details, text_tensor


class Requests(WorkerTest):
    """Requests and responses."""

    def test_methods_of_a_request_that_says_nothing(self):
        server = self.evaluator()
        self.check(
            server,
            [
                (
                    "r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), r.trace().get_context()",
                    ("('', 0, 0, 0, '{}', None)"),
                ),
                (
                    "sorted(r.requested_output_names()), type(r.requested_output_names())",
                    "(['OUT', 'TEXT'], <class 'set'>)",
                ),
                ("r.set_flags(3)\nr.flags()", "3"),
                ("r.model_name()", self.evaluate(server, "r.model_name()")),
                ("type(r)", "<class 'c_python_backend_utils.InferenceRequest'>"),
            ],
        )
        self.assertTrue(self.evaluate(server, "r.model_name()").startswith("AttributeError: "))

    def test_methods_of_a_request_that_says_much(self):
        server = self.evaluator()
        known = details("the id \u20ac", 17, 3, 5_000_000, 2, '{"a":1,"b":true,"c":"d"}', '{"traceparent":"00-1-2-01"}')
        code = "r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters()), r.trace().get_context()"
        wanted = ("the id \u20ac", 17, 3, 5_000_000, {"a": 1, "b": True, "c": "d"}, '{"traceparent":"00-1-2-01"}')
        self.assertEqual(self.evaluate(server, code, known), repr(wanted))
        self.assertEqual(self.evaluate(server, "r.correlation_id()", details("", "text")), "'text'")
        # Of each request its own, in one batch.
        requests = [
            ({"CODE": text_tensor((1,), b"r.request_id()")}, details("id%d" % n) if n % 3 else None) for n in range(9)
        ]
        found = [response.outputs[0][1][0].decode() for response in server.execute(*requests).responses]
        self.assertEqual(found, [repr("id%d" % n if n % 3 else "") for n in range(9)])

    def test_messages_larger_than_a_buffer_and_several_at_once(self):
        server = self.evaluator()
        code = text_tensor((1,), b"len(r.request_id()), len(json.loads(r.parameters())['a'])")
        sizes = [(200_000, 5), (3, 70_000), (1, 1), (65_500, 0), (10, 1 << 20)]
        for id_size, parameter_size in sizes:
            known = details("x" * id_size, parameters=json.dumps({"a": "y" * parameter_size}))
            server.send_execute(({"CODE": code}, known), ({"CODE": code}, known))
        for wanted in sizes:
            responses = server.responses().responses
            self.assertEqual([response.outputs[0][1][0].decode() for response in responses], [str(wanted)] * 2)

    def test_requests_of_different_forms_in_one_batch(self):
        server = self.serve(IDENTITY, "IN:FP32 INB:BYTES INC:INT32", "OUT:FP32 OUTB:BYTES OUTC:INT32")
        forms = [
            {"IN": X},
            {"IN": X[0]},
            {"INB": text_tensor((1,), b"x"), "INC": np.arange(3, dtype=np.int32)},
            {},
            {"IN": X, "INB": text_tensor((), b"y")},
            {"IN": X + 1},
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
        self.check(
            server,
            [
                (
                    t
                    + "x = pb.InferenceResponse([t])\nx.output_tensors() == [t], x.has_error(), x.error(), x.parameters()",
                    ("(True, False, None, '{}')"),
                ),
                (
                    t
                    + "x = pb.InferenceResponse(output_tensors=(t,), error=pb.TritonError('no'))\nx.has_error(), x.error().message()",
                    "(True, 'no')",
                ),
                (t + "pb.get_output_tensor_by_name(pb.InferenceResponse([t]), 'OUT') is t", "True"),
                (t + "pb.get_output_tensor_by_name(pb.InferenceResponse([t]), 'X')", "None"),
                ("pb.InferenceResponse().output_tensors()", "[]"),
                (
                    "pb.InferenceResponse([None])",
                    "TritonModelException: Output tensor for inference response should not be empty.",
                ),
                (
                    "pb.InferenceResponse([], parameters={'a': 1, 'b': True, 'c': 'd'}).parameters()",
                    '\'{"a": 1, "b": true, "c": "d"}\'',
                ),
                (
                    "pb.InferenceResponse([], parameters={1: 2})",
                    ("TritonModelException: Expect parameters keys to have type str, found type <class 'int'>"),
                ),
                (
                    "pb.InferenceResponse([], parameters={'a': 1.5})",
                    (
                        "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'float'>"
                    ),
                ),
                (
                    "pb.InferenceResponse([], parameters=[])",
                    "TritonModelException: Expect N8pybind114dictE, got <class 'list'>",
                ),
                (
                    "pb.InferenceResponse([], parameters={'a': 2 ** 64})",
                    (
                        "TritonModelException: Expect parameters values of type int to fit into 64 bits, found 18446744073709551616"
                    ),
                ),
            ],
        )
        refused = "TypeError: __init__(): incompatible constructor arguments."
        for code in [
            "pb.InferenceResponse(None)",
            "pb.InferenceResponse([1])",
            "pb.InferenceResponse('text')",
            "pb.InferenceResponse([], error='no')",
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
        self.assertEqual(
            self.evaluate(server, "[int(getattr(pb.TritonError, n)) for n in %r]" % names), str(list(range(8)))
        )
        self.check(
            server,
            [
                ("e = pb.TritonError('m')\ne.message(), e.code() == pb.TritonError.INTERNAL", "('m', True)"),
                (
                    "e = pb.TritonError(message='m', code=pb.TritonError.NOT_FOUND)\nstr(e.code()), e.code().name",
                    "('__ErrorCode.NOT_FOUND', 'NOT_FOUND')",
                ),
                (
                    "isinstance(pb.TritonError('m'), Exception), issubclass(pb.TritonModelException, Exception)",
                    "(False, True)",
                ),
            ],
        )
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
            "request_id",
            "correlation_id",
            "inputs",
            "requested_output_names",
            "model_name",
            "model_version",
            "flags",
            "timeout",
            "preferred_memory",
            "trace",
        ]:
            self.assertTrue(self.evaluate(server, made(**{name: "None"})).startswith("TypeError: __init__()"), name)
        for name in fine:
            self.assertTrue(self.evaluate(server, made(**{name: ""})).startswith("TypeError: __init__()"), name)
        for name, value in [
            ("inputs", "[1]"),
            ("inputs", "'text'"),
            ("requested_output_names", "[1]"),
            ("requested_output_names", "'OUT'"),
            ("model_name", "5"),
            ("model_version", "1.5"),
            ("flags", "-1"),
            ("flags", "2 ** 32"),
            ("timeout", "'1'"),
            ("request_id", "7"),
            ("trace", "'x'"),
            ("preferred_memory", "1"),
            ("correlation_id", "-1"),
        ]:
            self.assertTrue(
                self.evaluate(server, made(**{name: value})).startswith("TypeError: __init__()"), (name, value)
            )
        self.check(
            server,
            [
                (made(correlation_id="1.5"), "TritonModelException: Correlation ID must be integer or string"),
                (
                    made(inputs="[None]", request_id="'i'"),
                    (
                        "TritonModelException: Input tensor for request with id 'i' and model name 'x' should not be empty."
                    ),
                ),
                (
                    made(requested_output_names="['']"),
                    (
                        "TritonModelException: Requested output name for request with id '' and model name 'x' should not be empty."
                    ),
                ),
                (made(parameters="[]"), "TritonModelException: Expect N8pybind114dictE, got <class 'list'>"),
                (
                    made(parameters="{'a': None}"),
                    (
                        "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"
                    ),
                ),
                (
                    made(
                        parameters="None",
                        correlation_id="'text'",
                        timeout="np.int64(5)",
                        requested_output_names="{'A'}",
                    ),
                    "1",
                ),
            ],
        )


class Log(WorkerTest):
    """The log."""

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
        for code in [
            "pb.Logger.log(5)",
            "pb.Logger.log(None)",
            "pb.Logger.log('x', 1)",
            "pb.Logger.log_info()",
            "pb.Logger.log_info(5)",
            "pb.Logger.log('x', None)",
        ]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError"), code)

    def test_a_long_text_is_cut(self):
        server = self.serve(model("def initialize(self, args): pb_utils.Logger.log_info('\\u20ac' * 1000000)"))
        reader = server.expect("aux", ws.LOG)
        reader.take("BI"), reader.str16()
        self.assertIn(len(reader.str32().encode()), range((1 << 20) - 3, (1 << 20) + 1))
        reader.end()
