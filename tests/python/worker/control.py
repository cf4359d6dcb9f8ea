"""Control of other models, metrics, and `auto_complete_config`."""

import json
import struct

import worker.server as ws
from worker.case import WorkerTest, model


class Control(WorkerTest):
    """Other models, and metrics."""

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
        self.check(
            server,
            [
                ("pb.load_model('a')", "None"),
                (
                    "pb.load_model(model_name='a', config='{}', files={'file:1/model.onnx': b'content', 'file:1/empty': b''})",
                    "None",
                ),
                ("pb.load_model('bad')", "TritonModelException: Failed to load model: " + failed),
                ("pb.unload_model('a', True)", "None"),
                ("pb.unload_model('bad')", "TritonModelException: Failed to unload model: " + failed),
                ("pb.is_model_ready('a')", "True"),
                ("pb.is_model_ready('a', '2')", "True"),
                ("pb.is_model_ready('bad')", "TritonModelException: Failed to check model readiness: " + failed),
                (
                    "pb.load_model('a', files=[])",
                    (
                        "TritonModelException: failed to load model 'a', files should be a dictionary of file paths and file contents"
                    ),
                ),
            ],
        )
        self.assertEqual(
            seen,
            [
                (0, "a", "", 0, "", []),
                (0, "a", "", 0, "{}", [("file:1/model.onnx", b"content"), ("file:1/empty", b"")]),
                (0, "bad", "", 0, "", []),
                (1, "a", "", 1, "", []),
                (1, "bad", "", 0, "", []),
                (2, "a", "", 0, "", []),
                (2, "a", "2", 0, "", []),
                (2, "bad", "", 0, "", []),
            ],
        )
        for code in [
            "pb.load_model(None)",
            "pb.load_model('a', None)",
            "pb.unload_model(None)",
            "pb.unload_model('a', None)",
            "pb.is_model_ready(None)",
            "pb.is_model_ready('a', None)",
        ]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError"), code)

    def test_not_while_it_ends(self):
        server = self.serve(
            model(
                "def finalize(self):\n    try:\n        pb_utils.unload_model('a')\n    except pb_utils.TritonModelException as e:\n        print(e)"
            )
        )
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
        self.assertEqual(
            seen,
            [
                ("family", 0, "n", "d"),
                ("metric", 70, '{"a": "b"}', []),
                ("update", 5, 0, 2.0),
                ("value", 5),
                ("drop", 0, 70),
            ],
        )
        seen.clear()
        self.assertEqual(
            self.evaluate(server, family % "GAUGE" + "m = f.Metric()\nm.set(-1), m.increment(-2)"), "(None, None)"
        )
        self.assertEqual(
            self.evaluate(server, family % "HISTOGRAM" + "m = f.Metric(buckets=[1, 2.5])\nm.observe(3)"), "None"
        )
        self.assertIn(("metric", 72, "{}", [1.0, 2.5]), seen)
        self.assertIn(("update", 5, 2, 3.0), seen)
        create = "TritonModelException: Failed to create metric. "
        kinds = "TRITONSERVER_METRIC_KIND_"
        table = [
            (family % "COUNTER" + "f.Metric(labels=5)", create + "Labels must be a dictionary."),
            (family % "HISTOGRAM" + "f.Metric(buckets=(1,))", create + "Buckets must be a list."),
            (family % "HISTOGRAM" + "f.Metric()", create + "Missing required buckets."),
            (family % "GAUGE" + "f.Metric(buckets=[1])", create + "Unexpected buckets found."),
            (
                one + "m.set(1)",
                "TritonModelException: Failed to set metric value: " + failed + kinds + "COUNTER does not support Set",
            ),
            (
                one + "m.observe(1)",
                "TritonModelException: Failed to observe metric value: "
                + failed
                + kinds
                + "COUNTER does not support Observe",
            ),
            (
                one + "m.increment(-1)",
                (
                    "TritonModelException: Failed to increment metric value: "
                    + failed
                    + kinds
                    + "COUNTER can only be incremented monotonically by non-negative values."
                ),
            ),
            (
                family % "HISTOGRAM" + "f.Metric(buckets=[1]).increment(1)",
                (
                    "TritonModelException: Failed to increment metric value: "
                    + failed
                    + kinds
                    + "HISTOGRAM does not support Increment"
                ),
            ),
            (
                family % "HISTOGRAM" + "f.Metric(buckets=[1]).value()",
                (
                    "TritonModelException: Failed to get metric value: "
                    + failed
                    + kinds
                    + "HISTOGRAM does not support Value"
                ),
            ),
            (
                one + "del f\nm.increment(1)",
                (
                    "TritonModelException: Failed to increment metric value: Invalid metric operation as the corresponding "
                    "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER its corresponding "
                    "'Metric' objects have been deleted."
                ),
            ),
            (
                "pb.MetricFamily('bad', 'd', pb.MetricFamily.GAUGE)",
                "TritonModelException: Error when creating MetricFamily: " + failed + "no",
            ),
        ]
        self.check(server, table)
        for code in [
            "pb.MetricFamily()",
            "pb.MetricFamily('n', 'd', 5)",
            "pb.MetricFamily(None, 'd', pb.MetricFamily.GAUGE)",
            "pb.MetricFamily('n', None, pb.MetricFamily.GAUGE)",
        ]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError"), code)


class Complete(WorkerTest):
    """Rights of `auto_complete_config`."""

    def complete(self, body, config=None):
        source = model(
            "@staticmethod\ndef auto_complete_config(config):\n"
            + "\n".join("    " + line for line in body.strip("\n").split("\n"))
        )
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
        self.assertEqual(
            self.complete(body),
            {
                "name": "m",
                "max_batch_size": 4,
                "dynamic_batching": {},
                "model_transaction_policy": {"decoupled": True},
                "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1], "optional": True}],
                "output": [{"name": "B", "data_type": "TYPE_INT32", "dims": [-1]}],
            },
        )

    def test_what_is_there_is_merged_by_name(self):
        body = "config.add_input({'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [2]})\nconfig.set_max_batch_size(8)\nreturn config"
        config = {"input": [{"name": "A", "data_type": "TYPE_INVALID", "dims": []}], "max_batch_size": 8}
        found = self.complete(body, config)
        self.assertEqual(found["input"], [{"name": "A", "data_type": "TYPE_FP32", "dims": [2]}])

    def test_without_the_function_nothing_changes(self):
        server = self.serve(model("pass"), mode="complete", start=False)
        self.assertEqual(json.loads(server.expect("main", ws.COMPLETED).str32()), server.settings["config"])

    def test_the_server_is_not_asked_for_anything(self):
        for statement in (
            "pb_utils.MetricFamily('n', 'd', pb_utils.MetricFamily.GAUGE)",
            "pb_utils.is_model_ready('x')",
        ):
            found = self.complete(statement + "\nreturn config")
            self.assertTrue(found.startswith("TritonModelException: "), found)
            self.assertIn("'auto_complete_config'", found)

    def test_another_object_is_refused(self):
        wanted = "auto_complete_config function in model 'm_0_0' must return a valid pb.ModelConfig object."
        for value in ("None", "config.as_dict()"):
            self.assertEqual(self.complete("return " + value), wanted)

    def test_contradictions_are_refused(self):
        tensor = {"name": "A", "data_type": "TYPE_FP32", "dims": [1]}
        add = "config.add_input(%r)"
        have = {"input": [tensor], "output": [tensor], "max_batch_size": 4}
        server = self.evaluator()
        for body, config, wanted in [
            (
                "config.set_max_batch_size(2)",
                have,
                (
                    "configuration specified max_batch_size 4, but in auto-complete-config function for model 'm' specified max_batch_size 2"
                ),
            ),
            (
                "config.set_dynamic_batching()",
                {"sequence_batching": {}},
                (
                    "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for "
                    "model 'm' tries to set scheduling_choice as 'dynamic_batching'"
                ),
            ),
            (
                add % {"name": "A", "data_type": "TYPE_FP32"},
                {},
                "input 'A' in auto-complete-config function for model 'm' is missing 'dims' property.",
            ),
            (
                add % {"name": "A", "dims": [1]},
                {},
                "input 'A' in auto-complete-config function for model 'm' is missing 'data_type' property.",
            ),
            (
                add % {"dims": [1]},
                {},
                "input in auto-complete-config function for model 'm' is missing 'name' property.",
            ),
            (
                add % dict(tensor, extra=1),
                {},
                (
                    "input 'A' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type', 'dims' and 'optional'."
                ),
            ),
            (
                "config.add_output(%r)" % dict(tensor, optional=True),
                {},
                (
                    "output 'A' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type' and 'dims'."
                ),
            ),
            (
                add % dict(tensor, data_type="TYPE_FP64"),
                have,
                (
                    "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'A', model provides TYPE_FP64"
                ),
            ),
            (
                "config.add_output(%r)" % dict(tensor, dims=[2]),
                have,
                ("model 'm', tensor 'A': the model expects dims [2] but the model configuration specifies dims [1]"),
            ),
            (
                add % dict(tensor, optional=True),
                {"input": [dict(tensor, optional=False)]},
                (
                    "model 'm', tensor 'A': the model expects optional True but the model configuration specifies optional False"
                ),
            ),
            (
                "config.set_model_transaction_policy({'decoupled': True})",
                {"model_transaction_policy": {"decoupled": False}},
                (
                    "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'."
                ),
            ),
            (
                "config.set_model_transaction_policy({'x': True})",
                {},
                (
                    "model transaction property in auto-complete-config function for model 'm' contains property other than 'decoupled'."
                ),
            ),
        ]:
            known = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
            known.update(config)
            with self.subTest(body=body):
                code = "config = pb.ModelConfig(json.dumps(%r))\n%s" % (known, body)
                self.assertEqual(self.evaluate(server, code), "ValueError: " + wanted)
