"""Release of the server's memory, and the lack of it."""

import json
import os

import numpy as np

import worker.server as ws
from worker.case import IDENTITY, PREFIX, WorkerTest, X, model
from worker.server import text_tensor


class Memory(WorkerTest):
    """Release of the server's memory, and the lack of it."""

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
            "x",
            "x[0]",
            "x.reshape(-1)[2:]",
            "x.T",
            "x.view(np.uint8)",
            "memoryview(x)",
            "requests",
            "requests[0]",
            "requests[0].inputs()[0]",
            "requests[0].inputs()",
            "np.lib.stride_tricks.as_strided(x, (2,), (4,))",
            "(x[:1], x[1:])[1]",
            "requests[0].get_response_sender() and requests[0]",
            "x.ravel()",
            "np.frombuffer(x, np.float32)",
            "np.asarray(x, np.float32)",
        ]:
            with self.subTest(expression=expression):
                self.assertFalse(run(expression).inputs_free)
                self.assertEqual(len(server.slots), 1)
                # Others come and go meanwhile.
                self.assertTrue(run("", X + 1).inputs_free)
                self.assertTrue(run("drop").inputs_free)
                server.wait_until(lambda: not server.slots, 5)
        for expression in [
            "x.copy()",
            "x[0, 0]",
            "x * 2",
            "str(x)",
            "x.tolist()",
            "requests[0].request_id()",
            "requests[0].get_response_sender()",
        ]:
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

    def test_pages_that_only_a_large_batch_needed_are_given_back_when_small_ones_come(self):
        source = model(
            """
def execute(self, requests):
    size = int(requests[0].inputs()[0].as_numpy()[0])
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size, 1, np.uint8))])]
"""
        )
        mebibyte = 1 << 20
        server = self.serve(source, "IN:INT32", "OUT:UINT8", region_sizes=(mebibyte, 64 * mebibyte))

        def run(size):
            """Runs a batch; returns its slot, and the memory that the region then takes."""
            (slot, _, _, _) = server.execute({"IN": np.array([size], np.int32)}).span
            server.response_slots.remove(slot)
            return slot, os.fstat(server.response_regions[0].fd).st_blocks * 512

        first, _ = run(10 * mebibyte)
        second, held = run(20 * mebibyte)
        self.assertGreaterEqual(held, 30 * mebibyte)
        # The server keeps the other slot.
        server.response_slots.append(first)
        third, held = run(1)
        self.assertGreaterEqual(held, 30 * mebibyte)
        server.response_slots += [second, third]
        for _ in range(64):
            # A large one may come again.
            slot, held = run(1)
            self.assertGreaterEqual(held, 30 * mebibyte)
            server.response_slots.append(slot)
        # The next batch begins with what is free: it takes pages that were kept.
        fourth, held = run(mebibyte)
        self.assertLessEqual(held, 16 * mebibyte)
        self.assertEqual(server.response_regions[0].map[:8], server.batch.to_bytes(8, "little"))
        server.response_slots.append(fourth)
        # Less than what is kept stays.
        fifth, held = run(15 * mebibyte)
        server.response_slots.append(fifth)
        self.assertEqual(run(1)[1], held)

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
