"""Holds the server on OpenVINO to OpenVINO in Python: models made here in each datatype, in fixed and open batches, and the
light models of the package `onnx`, as ONNX and as IR. `hold_openvino.py PROGRAM FOLDER`."""

import pathlib
import shutil
import sys

import numpy as np
import openvino as ov
from openvino import opset6
from openvino import opset13 as op

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from served import Refused, Server, write  # noqa: E402

program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
repository = folder / "models"
random = np.random.default_rng(7)
core = ov.Core()
core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
checked = 0


def save(name, outputs, inputs, config=""):
    for output, output_name in outputs:
        output.output(0).set_names({output_name})
    model = ov.Model([output for output, _ in outputs], inputs, name)
    ov.save_model(model, str(write(repository, name, config) / "model.xml"), compress_to_fp16=False)


def parameter(name, shape, dtype=np.float32):
    made = op.parameter(shape, dtype, name=name)
    made.output(0).set_names({name})
    return made


def perceptron(x):
    first = op.constant(random.standard_normal((16, 64), np.float32))
    second = op.constant(random.standard_normal((64, 4), np.float32))
    return op.matmul(op.relu(op.matmul(x, first, False, False)), second, False, False)


x = parameter("x", [-1, 16])
save("mlp", [(perceptron(x), "y")], [x])
x = parameter("x", [1, 16])
TENSORS = """input { name: 'x' data_type: TYPE_FP32 dims: 16 } output { name: 'y' data_type: TYPE_FP32 dims: 4 }"""
save("fixed", [(perceptron(x), "y")], [x], f"backend: 'openvino' max_batch_size: 8 {TENSORS}")
TYPES = {"BOOL": bool, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
         "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32,
         "FP64": np.float64}  # fmt: skip
NARROW = "backend: 'openvino' parameters { key: 'NARROW_DATATYPES' value { string_value: 'YES' } }"
for name, dtype in TYPES.items():
    x = parameter("x", [-1, 5], dtype)
    reverse = op.gather(x, op.constant(np.arange(4, -1, -1)), op.constant(np.array(1)))
    turned = op.concat([x, reverse], 1)
    save(f"type_{name.lower()}", [(turned, "y")], [x], NARROW if name == "FP64" else "")
# A failing run: more of the largest than there are. The added input is known before.
x, k = parameter("x", [-1]), parameter("k", [1], np.int64)
largest = op.topk(x, op.squeeze(k, op.constant(np.array(0))), 0, "max", "value")
double = op.add(x, x)
double.output(0).set_names({"double"})
largest.output(0).set_names({"largest"})
TOP = """backend: 'openvino' max_batch_size: 0 input [ { name: 'x' data_type: TYPE_FP32 dims: -1 },
         { name: 'k' data_type: TYPE_INT64 dims: 1 } ] output [ { name: 'double' data_type: TYPE_FP32 dims: -1 },
         { name: 'largest' data_type: TYPE_FP32 dims: -1 } ]"""
ov.save_model(ov.Model([double.output(0), largest.output(0)], [x, k]), str(write(repository, "top", TOP) / "model.xml"))
# Integers: an operation, the same in Python, and the largest number for which it is exact.
ONE = np.array(1)
INTEGERS = {
    "identity": (lambda x: op.reshape(x, op.constant(np.array([-1])), False), lambda x: x, 2**31 - 1),
    "add": (lambda x: op.add(x, op.constant(ONE)), lambda x: x + 1, 2**31 - 2),
    "mul": (lambda x: op.multiply(x, x), lambda x: x * x, 46340),
    "max": (lambda x: op.maximum(x, op.constant(np.array(5))), lambda x: np.maximum(x, 5), 2**31 - 1),
    "tile": (lambda x: op.tile(x, op.constant(np.array([2]))), lambda x: np.tile(x, 2), 2**31 - 1),
    "mod": (lambda x: op.mod(x, op.constant(np.array(10))), lambda x: np.fmod(x, 10), 2**24),
    "div": (lambda x: op.divide(x, op.constant(np.array(3))), lambda x: np.trunc(x / 3).astype(np.int64), 2**24),
    "reduce": (lambda x: op.reduce_max(x, op.constant(np.array(0)), True), lambda x: x.max(0, keepdims=True), 2**24),
    "equal": (lambda x: op.equal(x, op.constant(np.array(2**24 - 1))), lambda x: x == 2**24 - 1, 2**24),
    "cumsum": (lambda x: op.cum_sum(x, op.constant(np.array(0))), lambda x: np.cumsum(x), 127),
    "shape": (lambda x: op.multiply(op.shape_of(x), op.constant(np.array(2**20))), lambda x: np.array([len(x) * 2**20]), 2**31 - 1),
}
LIST = "max_batch_size: 0 input { name: 'x' data_type: TYPE_INT64 dims: -1 } output"
for name, (made, _, _) in INTEGERS.items():
    x = parameter("x", [-1], np.int64)
    given = "BOOL" if name == "equal" else "INT64"
    save(f"int_{name}", [(made(x), "y")], [x], f"backend: 'openvino' {LIST} {{ name: 'y' data_type: TYPE_{given} dims: -1 }}")
x = parameter("x", [-1], np.int64)
save("int_narrow", [(op.multiply(x, x), "y")], [x], f"{NARROW} {LIST} {{ name: 'y' data_type: TYPE_INT64 dims: -1 }}")
x = parameter("x", [-1])
save("refused_cast", [(op.convert(x, np.int64), "y")], [x])
x = parameter("x", [-1], np.int64)
save("refused_power", [(op.power(x, op.constant(np.array(2))), "y")], [x])
x = parameter("x", [-1, 2])
total = op.add(opset6.read_value(op.constant(np.zeros((1, 2), np.float32)), "total", np.float32, ov.PartialShape([1, 2])), x)
total.output(0).set_names({"y"})
kept = ov.Model([total.output(0)], [opset6.assign(total, "total")], [x])
ov.save_model(kept, str(write(repository, "refused_state") / "model.xml"))
x = parameter("x", [-1], np.float64)
save("refused_fp64", [(op.relu(x), "y")], [x])
# A model's own constant, its own input and a scalar, beside a computed output.
x = parameter("x", [-1, 3])
same, constant = op.result(x), op.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
save("parts", [(op.relu(x), "y"), (op.reduce_sum(x, op.constant(np.array([0, 1])), False), "sum")], [x])
converted = "backend: 'openvino' max_batch_size: 8 input { name: 'x' data_type: TYPE_INT32 dims: 16 } " \
            "output { name: 'y' data_type: TYPE_FP32 dims: 4 }"  # fmt: skip
x = parameter("x", [-1, 16])
save("converted", [(perceptron(x), "y")], [x], converted)
bf16 = "parameters { key: 'HINT_BF16' value { string_value: 'YES' } }"
shutil.copytree(repository / "mlp", repository / "bf16")
(repository / "bf16/config.pbtxt").write_text(f"backend: 'openvino' max_batch_size: 8 {TENSORS} {bf16}")

light = pathlib.Path(ov.__file__).parent.parent / "onnx/backend/test/data/light"
for file in sorted(light.glob("light_*.onnx")):
    version = write(repository, file.stem, "backend: 'openvino'")
    shutil.copy(file, version / "model.onnx")
    ir = write(repository, f"{file.stem}_ir")
    ov.save_model(core.read_model(file), str(ir / "model.xml"), compress_to_fp16=False)

server = Server(program, repository)


def want(name, inputs):
    files = [repository / name / "1" / file for file in ("model.xml", "model.onnx")]
    model = core.read_model(next(file for file in files if file.exists()))
    if any(port.partial_shape[0] != -1 for port in model.inputs) and name == "fixed":
        model.reshape({port: [-1, *list(port.partial_shape)[1:]] for port in model.inputs})
    return core.compile_model(model, "CPU")(inputs)


def check(name, inputs, tolerance=0.0, given=None):
    global checked
    got, expected = server.infer(name, given or inputs), want(name, inputs)
    for port, value in expected.items():
        mine = got[port.get_any_name()]
        assert mine.dtype == value.dtype or value.dtype == bool, (name, mine.dtype, value.dtype)
        # A configuration cannot say that a tensor has no dimensions.
        assert mine.shape == (value.shape or (1,)), (name, mine.shape, value.shape)
        close = np.allclose(mine.astype(np.float64), value.reshape(mine.shape).astype(np.float64), tolerance, tolerance)
        assert close, (name, np.abs(mine.astype(np.float64) - value.astype(np.float64)).max())
        checked += 1


for rows in range(1, 9):
    sample = random.standard_normal((rows, 16), np.float32)
    if rows <= 4:
        check("mlp", {"x": sample}, 1e-5)
    check("fixed", {"x": sample}, 1e-5)
    whole = random.integers(-9, 9, (rows, 16), np.int32)
    check("converted", {"x": whole.astype(np.float32)}, 1e-5, {"x": whole})
    if rows <= 4:
        check("parts", {"x": random.standard_normal((rows, 3), np.float32)}, 1e-5)
for name, dtype in TYPES.items():
    for rows in (1, 3):
        check(f"type_{name.lower()}", {"x": random.integers(0, 2, (rows, 5)).astype(dtype)})
for file in sorted(light.glob("light_*.onnx")):
    model = core.read_model(file)
    shape = [size.get_length() for size in model.inputs[0].partial_shape]
    sample = {model.inputs[0].get_any_name(): random.standard_normal(shape, np.float32)}
    check(file.stem, sample, 1e-4)
    check(f"{file.stem}_ir", sample, 1e-4)

# No answer of a run that failed, on the one thread of a server's worker and by a model of its own.
failures = 0
for turn in range(400):
    sample = np.arange(1500, dtype=np.float32) + turn * 2000
    got = server.infer("top", {"x": sample, "k": np.array([1500])})
    assert (got["largest"] == sample[::-1]).all() and (got["double"] == 2 * sample).all(), turn
    try:
        wrong = server.infer("top", {"x": np.array([1, 2, turn], np.float32), "k": np.array([9])})
        raise SystemExit(f"a run that failed is answered with {[value.shape for value in wrong.values()]}, turn {turn}")
    except Refused as error:
        assert str(error).startswith("400 model 'top': OpenVINO") and "TopK" in str(error), error
        failures += 1
    got = server.infer("top", {"x": sample[:3], "k": np.array([1 + turn % 3])})
    assert (got["largest"] == sample[2::-1][: 1 + turn % 3]).all() and (got["double"] == 2 * sample[:3]).all(), turn

# Integers are exact up to the limit, and refused beyond it.
for name, (_, in_python, limit) in INTEGERS.items():
    for sample in ([limit, 7, limit - 1], [-limit, 3], [0]):
        sample = np.array(sample, np.int64)
        got, right = server.infer(f"int_{name}", {"x": sample})["y"], in_python(sample)
        assert got.dtype == right.dtype and (got == right).all(), (name, sample, got, right)
        checked += 1
    for beyond in (limit + 1, 2**40, -(2**40)):
        try:
            got = server.infer(f"int_{name}", {"x": np.array([7, beyond], np.int64)})
            raise SystemExit(f"{name} takes {beyond}: {got}")
        except Refused as error:
            text = str(error)
            assert text.startswith("400 ") and "input 'x'" in text and f", {limit}]" in text and str(beyond) in text, error
assert server.infer("int_narrow", {"x": np.array([100000])})["y"] == [1410065408], "as 32 bits give it"
for name, why in [("cast", "operator Convert"), ("power", "operator Power"), ("fp64", "FP64")]:
    reason = server.reason(f"refused_{name}")
    assert why in reason and "NARROW_DATATYPES" in reason, reason
assert "it keeps a state from run to run (ReadValue" in server.reason("refused_state"), server.reason("refused_state")
for name in ("UINT32", "UINT64"):
    try:
        server.infer(f"type_{name.lower()}", {"x": np.full((1, 5), 2**31, TYPES[name])})
        raise SystemExit(f"{name} of 2^31 was taken")
    except Refused as error:
        assert str(error).startswith("400 ") and "[0, 2147483647]" in str(error), error

# BF16 is used where it is asked for and the processor has it, and nowhere else.
sample = random.standard_normal((4, 16), np.float32)
exact = want("mlp", {"x": sample})[0]
off = np.abs(server.infer("mlp", {"x": sample})["y"] - exact).max() / np.abs(exact).max()
off_bf16 = np.abs(server.infer("bf16", {"x": sample})["y"] - exact).max() / np.abs(exact).max()
assert off < 1e-6, off
for shape, text in [((1, 15), "400 "), ((9, 16), "400 ")]:
    try:
        server.infer("fixed", {"x": np.zeros(shape, np.float32)})
        raise SystemExit(f"{shape} was taken")
    except Refused as error:
        assert str(error).startswith(text), error
print(f"{checked} outputs of {len(list(repository.iterdir()))} models as OpenVINO {ov.__version__} has them; of the largest "
      f"value, FP32 is {off:.1e} off and BF16 {off_bf16:.1e}; {failures} of 400 failing runs were told")  # fmt: skip
server.stop()
