"""Holds the server on OpenVINO to OpenVINO in Python: models made here in each datatype, in fixed and open batches, and the
light models of the package `onnx`, as ONNX and as IR. `hold_openvino.py PROGRAM FOLDER`."""

import pathlib
import shutil
import sys

import numpy as np
import openvino as ov
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
for name, dtype in TYPES.items():
    x = parameter("x", [-1, 5], dtype)
    reverse = op.gather(x, op.constant(np.arange(4, -1, -1)), op.constant(np.array(1)))
    turned = op.concat([x, reverse], 1)
    save(f"type_{name.lower()}", [(turned, "y")], [x])
# A model's own constant, its own input and a scalar, beside what is computed.
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
      f"value, FP32 is {off:.1e} off and BF16 {off_bf16:.1e}")  # fmt: skip
server.stop()
