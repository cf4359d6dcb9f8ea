"""Tensors in both directions, DLPack, and the functions of the module."""

import json
import shutil
import subprocess
import tempfile

import numpy as np

import worker.server as ws
from worker.case import IDENTITY, PREFIX, WorkerTest, X, model
from worker.server import text_tensor


class Tensors(WorkerTest):
    """Tensors in both directions."""

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
        code += (
            "a.flags.writeable, a.flags.owndata, a.ctypes.data % 64, type(a).__name__, r.inputs()[1].as_numpy() is a"
        )
        self.assertEqual(self.evaluate(server, code, A=X), "(True, False, 0, 'ndarray', True)")
        # The memory is the server's own.
        self.assertIn(99.0, np.frombuffer(server.request_regions[0].map, np.float32)[:64].tolist())

    def test_methods_of_a_tensor(self):
        server = self.evaluator()
        tensor = "t = pb.Tensor('T', np.zeros((2, 3), np.int8))\n"
        self.check(
            server,
            [
                (
                    tensor + "t.name(), t.shape(), type(t.shape()), t.is_cpu(), t.as_numpy().dtype",
                    ("('T', [2, 3], <class 'list'>, True, dtype('int8'))"),
                ),
                (tensor + "type(t)", "<class 'c_python_backend_utils.Tensor'>"),
                (tensor + "t.x = 1", "SyntaxError: invalid syntax (<string>, line 1)"),
                (tensor + "setattr(t, 'x', 1)", self.evaluate(server, tensor + "setattr(t, 'x', 1)")),
                (tensor + "t.__dlpack_device__()", "(1, 0)"),
                ("[t.shape() for t in r.inputs()]", "[[1], [2, 3]]"),
            ],
            A=X,
        )
        self.assertTrue(self.evaluate(server, tensor + "setattr(t, 'x', 1)").startswith("AttributeError"))
        text = self.evaluate(server, tensor + "t.triton_dtype()")
        self.assertTrue(text.startswith("TypeError: Unable to convert function return value to a Python type!"), text)

    def test_wrong_arguments_of_a_tensor(self):
        server = self.evaluator()
        refused = "TypeError: __init__(): incompatible constructor arguments."
        for code in [
            "pb.Tensor('T', [1, 2])",
            "pb.Tensor('T', None)",
            "pb.Tensor(None, np.ones(1))",
            "pb.Tensor(5, np.ones(1))",
            "pb.Tensor('T', np.float32(1))",
            "pb.Tensor('T', b'x')",
        ]:
            self.assertTrue(self.evaluate(server, code).startswith(refused), code)
        for code in ["pb.Tensor('T')", "pb.Tensor(name='T', array=np.ones(1))", "pb.Tensor()"]:
            self.assertTrue(self.evaluate(server, code).startswith("TypeError: "), code)
        unsupported = "TritonModelException: NumPy dtype is not supported."
        self.check(
            server,
            [
                ("pb.Tensor('', np.ones(1))", "TritonModelException: Tensor name cannot be an empty string."),
                ("pb.Tensor('T', np.array(['text']))", unsupported),
                ("pb.Tensor('T', np.ones(1, np.complex64))", unsupported),
                ("pb.Tensor('T', np.ones(1, '>f4'))", unsupported),
                ("pb.Tensor('T', np.ones(1, 'datetime64[s]'))", unsupported),
                ("pb.Tensor(b'T', np.ones(1, np.longlong)).name()", "'T'"),
            ],
        )

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
        server = self.serve(
            source, outputs="OUT:FP32 EVERY:FP32 BACK:FP32 BIG:FP32 SAME:FP32", region_sizes=(1 << 20, 4 << 20)
        )
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
        for dtype in (
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "int8",
            "int16",
            "int32",
            "int64",
            "float16",
            "float32",
            "float64",
        ):
            code = (
                t % dtype
                + "u = pb.Tensor.from_dlpack('U', t)\nu.name(), u.as_numpy().tolist(), u.as_numpy().dtype.name"
            )
            self.assertEqual(
                self.evaluate(server, code), str(("U", np.arange(6, dtype=dtype).reshape(2, 3).tolist(), dtype))
            )
        self.check(
            server,
            [
                (
                    "pb.Tensor.from_dlpack('U', pb.Tensor('T', np.array([True, False]))).as_numpy()",
                    "array([ True, False])",
                ),
                (
                    "pb.Tensor.from_dlpack('U', pb.Tensor('T', np.array(5, np.float32))).as_numpy()",
                    "array(5., dtype=float32)",
                ),
                ("pb.Tensor.from_dlpack('U', pb.Tensor('T', np.zeros((0, 3), np.int8)).to_dlpack()).shape()", "[0, 3]"),
                (
                    "pb.Tensor('T', np.array([b'x'])).to_dlpack()",
                    "TritonModelException: DLPack does not have support for string tensors.",
                ),
                (
                    "pb.Tensor.from_dlpack('', np.ones(1))",
                    "TritonModelException: Tensor name cannot be an empty string.",
                ),
                (
                    "c = pb.Tensor('T', np.ones(1)).to_dlpack()\npb.Tensor.from_dlpack('U', c) and pb.Tensor.from_dlpack('U', c)",
                    ("TritonModelException: The DLPack capsule was used already."),
                ),
            ],
        )
        text = self.evaluate(server, "pb.Tensor.from_dlpack('U', [1])")
        self.assertTrue(text.startswith("TritonModelException: Provided tensor is not supported. Tensor must be"), text)
        if self.evaluate(server, "hasattr(np, 'from_dlpack')") == "True":
            self.check(
                server,
                [
                    ("np.from_dlpack(pb.Tensor('T', np.arange(3))).tolist()", "[0, 1, 2]"),
                    ("pb.Tensor.from_dlpack('U', np.arange(3)).as_numpy().tolist()", "[0, 1, 2]"),
                    ("pb.Tensor.from_dlpack('U', np.zeros((3, 0))).shape()", "[3, 0]"),
                    (
                        "type(pb.Tensor.from_dlpack('U', np.arange(4)[::2]))",
                        (
                            "TritonModelException: DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
                            "in C-Order are supported."
                        ),
                    ),
                    (
                        "pb.Tensor.from_dlpack('U', np.arange(6).reshape(2, 3).T)",
                        (
                            "TritonModelException: DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
                            "in C-Order are supported."
                        ),
                    ),
                ],
            )

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

    DRIVER = """
#include <string.h>
#define EXPORTED __attribute__((visibility("default")))
// Memory of this GPU is that of the CPU with all bits turned over.
static int depth = 0;
EXPORTED int cuInit(unsigned flags) { return (int)flags; }
EXPORTED int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 1 ? 0 : 101; }
EXPORTED int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &depth; return device == 1 ? 0 : 101; }
EXPORTED int cuDevicePrimaryCtxRelease_v2(int device) { return device == 1 ? 0 : 101; }
EXPORTED int cuCtxPushCurrent_v2(void *context) { return context == &depth && depth++ == 0 ? 0 : 201; }
EXPORTED int cuCtxPopCurrent_v2(void **context) { *context = &depth; return --depth == 0 ? 0 : 201; }
EXPORTED int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) {
    if (depth != 1) return 201;
    for (size_t i = 0; i < size; i++) ((unsigned char *)to)[i] = ~((unsigned char *)from)[i];
    return 0;
}
"""

    ON_GPU = """
import deuteron_dlpack as d
def on_gpu(array, device=1):
    capsule = pb.Tensor('T', ~array.view(np.uint8).reshape(array.shape[0], -1)).to_dlpack()
    tensor = d.DLManagedTensor.from_address(d.capsule_pointer(id(capsule), b"dltensor")).tensor
    tensor.device_type, tensor.device_id = 2, device
    return capsule
t = pb.Tensor.from_dlpack('OUT', on_gpu(np.arange(6, dtype=np.uint8).reshape(2, 3)))
"""

    def test_outputs_on_a_gpu_are_copied(self):
        compiler = shutil.which("gcc")
        if compiler is None:
            self.skipTest("no C compiler")
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        with open(folder + "/cuda.c", "w") as file:
            file.write(self.DRIVER)
        library = folder + "/libcuda.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, folder + "/cuda.c"], check=True)
        source = model(
            "def execute(self, requests):\n    pb = pb_utils\n"
            + "\n".join("    " + line for line in self.ON_GPU.split("\n"))
            + """
    facts = [t.is_cpu(), t.shape(), t.__dlpack_device__(), pb.Tensor.from_dlpack("T", t).is_cpu()]
    try:
        t.as_numpy()
    except pb.TritonModelException as error:
        facts.append(str(error))
    text = np.array([json.dumps(facts)], object)
    return [pb.InferenceResponse([t, pb.Tensor("TEXT", text)])]
"""
        )
        server = self.serve(source, outputs="OUT:UINT8 TEXT:BYTES", environment={"LD_LIBRARY_PATH": folder})
        outputs = server.ask({"IN": X})
        self.assertEqual(outputs["OUT"].tolist(), [[0, 1, 2], [3, 4, 5]])
        refused = "Tensor is stored in GPU and cannot be converted to NumPy."
        self.assertEqual(json.loads(outputs["TEXT"][0]), [False, [2, 3], [2, 1], False, refused])

    def test_a_gpu_that_fails_fails_the_batch(self):
        source = model(
            "def execute(self, requests):\n    pb = pb_utils\n"
            + "\n".join("    " + line for line in self.ON_GPU.split("\n"))
            + "\n    t = pb.Tensor.from_dlpack('OUT', on_gpu(np.zeros((1, 1), np.uint8), 99))"
            + "\n    return [pb.InferenceResponse([t])]"
        )
        server = self.serve(source, outputs="OUT:UINT8")
        text = self.failure(server)
        # Without a driver, or with a real one that has no such device.
        self.assertTrue(text.startswith(PREFIX), text)
        self.assertTrue("GPU" in text, text)
        self.assertEqual(self.failure(server), text)

    def test_functions_of_the_module(self):
        server = self.evaluator()
        config = {
            "input": [{"name": "A"}],
            "output": [{"name": "B", "dims": [1]}],
            "model_transaction_policy": {"decoupled": True},
        }
        self.check(
            server,
            [
                (
                    "pb.get_input_config_by_name(%r, 'A'), pb.get_input_config_by_name(%r, 'B')" % (config, config),
                    "({'name': 'A'}, None)",
                ),
                ("pb.get_output_config_by_name(%r, 'B')" % config, "{'name': 'B', 'dims': [1]}"),
                ("pb.get_output_config_by_name({}, 'B')", "None"),
                (
                    "pb.using_decoupled_model_transaction_policy(%r), pb.using_decoupled_model_transaction_policy({})"
                    % config,
                    "(True, False)",
                ),
                (
                    "pb.triton_string_to_numpy('TYPE_FP32') is np.float32, pb.triton_string_to_numpy('TYPE_BOOL') is bool",
                    "(True, True)",
                ),
                ("pb.triton_string_to_numpy('TYPE_STRING') is np.object_", "True"),
                ("pb.triton_string_to_numpy('TYPE_BF16')", "KeyError: 'TYPE_BF16'"),
                (
                    "[pb.numpy_to_triton_type(pb.triton_to_numpy_type(n)) for n in range(16)]",
                    ("[None, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, None, None]"),
                ),
                ("pb.numpy_to_triton_type(np.bytes_), pb.numpy_to_triton_type(np.dtype('float32'))", "(13, 11)"),
                (
                    "pb.serialize_byte_tensor(np.array([b'ab', 'c', 5], object))",
                    "b'\\x02\\x00\\x00\\x00ab\\x01\\x00\\x00\\x00c\\x01\\x00\\x00\\x005'",
                ),
                ("pb.serialize_byte_tensor(np.array([b'ab']))", "b'\\x02\\x00\\x00\\x00ab'"),
                ("pb.serialize_byte_tensor(np.array([], object)), pb.serialize_byte_tensor(np.ones(1))", "((), None)"),
                ("pb.deserialize_bytes_tensor(b'\\2\\0\\0\\0ab\\0\\0\\0\\0')", "array([b'ab', b''], dtype=object)"),
                ("pb.deserialize_bytes_tensor(b'').shape", "(0,)"),
                (
                    "pb.deserialize_bytes_tensor(b'\\7\\0\\0\\0ab')",
                    ("TritonModelException: Invalid bytes tensor data: string extends beyond buffer"),
                ),
                ("pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END", "(1, 2)"),
                ("pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL, pb.TRITONSERVER_REQUEST_RELEASE_ALL", "(1, 1)"),
                ("pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", "2"),
                (
                    "pb.PreferredMemory(pb.TRITONSERVER_MEMORY_GPU, 1) and pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU) and 1",
                    "1",
                ),
            ],
        )
        self.assertEqual(self.evaluate(server, "pb.get_model_dir()"), repr(server.version))
        self.assertTrue(self.evaluate(server, "pb.PreferredMemory(None)").startswith("TypeError"))
