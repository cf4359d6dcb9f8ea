"""Response senders, cancellation, rescheduling."""

import worker.server as ws
from worker.case import PREFIX, WorkerTest, X, model
from worker.server import text_tensor


class Senders(WorkerTest):
    """Response senders, cancellation, rescheduling."""

    def run_model(self, body, decoupled, count=1):
        server = self.serve(
            model("def execute(self, requests):\n" + "\n".join("    " + line for line in body.strip("\n").split("\n"))),
            outputs="OUT:FP32 TEXT:BYTES",
            decoupled=decoupled,
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
            "s = requests[0].get_response_sender()\ns.send(%s)\ns.send(flags=1)\nreturn [None]" % self.RESPONSE % 7,
            False,
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
    time.sleep(0.5)
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([number]))]), 1)
for number, request in enumerate(requests):
    threading.Thread(target=answer, args=(request.get_response_sender(), number)).start()
"""
        for decoupled in (False, True):
            server = self.run_model(body, decoupled, 4)
            responses = server.responses()
            self.assertEqual([response.kind for response in responses.responses], [0] * 4)
            self.assertTrue(responses.inputs_free)
            found = sorted(
                (sent.request, sent.flags, sent.response.outputs[0][1].tolist())
                for sent in [server.sent() for _ in range(4)]
            )
            first = found[0][0]
            self.assertEqual(found, [(first + number, 1, [number]) for number in range(4)])

    def test_requests_may_be_kept_in_place_of_senders(self):
        body = (
            """
def answer(requests):
    time.sleep(0.05)
    for request in requests:
        request.get_response_sender().send(%s, 1)
threading.Thread(target=answer, args=(requests,)).start()
"""
            % self.RESPONSE
            % 5
        )
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
        server = self.run_model(
            "threading.Timer(0.1, lambda kept: None, (requests[0].get_response_sender(),)).start()", False
        )
        self.assertEqual([response.kind for response in server.responses().responses], [0])
        self.assertEqual(server.sent().flags, 2)

    def test_outputs_of_senders_are_pruned(self):
        body = (
            "requests[0].get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor('X', np.ones(1))]), 1)"
        )
        server = self.run_model(body, False)
        self.assertEqual(server.sent().response.outputs, [])

    def test_an_error_by_a_sender(self):
        body = "requests[0].get_response_sender().send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.UNAVAILABLE)), 1)"
        sent = self.run_model(body, True).sent()
        self.assertEqual((sent.flags, sent.response.kind, sent.response.code, sent.response.text), (1, 2, 4, "no"))

    def judge(self, decoupled):
        """A server whose model runs the text of its input with a sender and a response, and says what came of it."""
        source = model(
            """
def execute(self, requests):
    self.kept = s = requests[0].get_response_sender()
    r = pb_utils.InferenceResponse([])
    try:
        exec(requests[0].inputs()[0].as_numpy()[0].decode(), {"s": s, "r": r})
        text = "fine"
    except Exception as error:
        text = type(error).__name__ + ": " + str(error)
    pb_utils.Logger.log_info(text)
"""
        )
        return self.serve(source, "CODE:BYTES", decoupled=decoupled)

    def refused(self, server, statements):
        server.send_execute({"CODE": text_tensor((1,), "\n".join(statements).encode())})
        reader = server.expect("aux", ws.LOG)
        reader.take("BI"), reader.str16()
        return reader.str32()

    def test_what_may_not_be_sent(self):
        unable = "TritonModelException: Unable to send response. "
        servers = {decoupled: self.judge(decoupled) for decoupled in (False, True)}
        for statements, decoupled, wanted in [
            (["s.send(r, 2)"], True, unable + "Unsupported flag provided."),
            (
                ["s.send()"],
                True,
                "TritonModelException: Inference Response object must be provided when the response flags is set to zero.",
            ),
            (["s.send(flags=1)", "s.send(r)"], True, unable + "Response sender has been closed."),
            (["s.send(r, 1)", "s.send(flags=1)"], True, unable + "Response sender has been closed."),
            (["s.send(r)", "s.send(r)"], False, unable + "Non-decoupled model cannot send more than one response."),
            (["s.send(r, 1)", "s.send(r)"], False, unable + "Non-decoupled model cannot send more than one response."),
            (
                ["s.send(flags=1)"],
                False,
                unable + "Non-decoupled model cannot send complete final before sending a response.",
            ),
            (["s.send(r, 1)", "s.send(flags=1)"], False, unable + "Response sender has been closed."),
            (["s.send(r)", "s.send(flags=1)"], False, "fine"),
        ]:
            with self.subTest(statements=statements):
                self.assertEqual(self.refused(servers[decoupled], statements), wanted)
        for statement in ("s.send('text')", "s.send(r, None)", "s.send(r, -1)", "s.send(r, 'x')"):
            text = self.refused(servers[True], [statement])
            self.assertTrue(text.startswith("TypeError: send()"), text)

    def test_a_response_both_sent_and_returned(self):
        body = "r = %s\nrequests[0].get_response_sender().send(r, 1)\nreturn [r]" % self.RESPONSE % 1
        server = self.run_model(body, False)
        server.sent()
        text = server.responses().text
        self.assertEqual(
            text, PREFIX + "Unable to send response. Non-decoupled model cannot send more than one response."
        )

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
        self.assertEqual(
            response.text, "Unable to send response. Non-decoupled model cannot send more than one response."
        )

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
        body = (
            "requests[1].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn [%s, None]"
            % self.RESPONSE
            % 1
        )
        responses = self.run_model(body, False, 2).responses().responses
        self.assertEqual([response.kind for response in responses], [1, 3])
        body = "requests[0].set_release_flags(2)\nreturn [%s]" % self.RESPONSE % 1
        self.assertEqual(
            self.run_model(body, False).responses().text,
            PREFIX
            + (
                "Expected a None object in the execute function return list for reschduled request, found type "
                "'<class 'c_python_backend_utils.InferenceResponse'>'."
            ),
        )
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
        # As long as it takes: a collection at each allocation is slow on a busy machine.
        for _ in range(600):
            server.settle(0.1)
            kinds = [kind for kind, _ in server.received["main"]]
            if kinds.count(ws.RESPONSES) >= 30 and kinds.count(ws.SEND) > 550:
                break
        self.assertEqual(kinds.count(ws.RESPONSES), 30)
        self.assertGreater(kinds.count(ws.SEND), 550)
