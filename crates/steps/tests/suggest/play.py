"""Runs each model.py of this folder whose libraries are there on requests, without a server: stand-ins take the place of
triton_python_backend_utils. Writes the inputs and outputs of each for the test that runs the proposed steps on the same inputs.

Arguments: the folder for the results, then the names of the files.
"""

import io
import json
import os
import shutil
import struct
import sys
import types

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = 3
NAMES = {
    np.dtype(np.float32): "FP32", np.dtype(np.float64): "FP64", np.dtype(np.float16): "FP16", np.dtype(np.int64): "INT64",
    np.dtype(np.int32): "INT32", np.dtype(np.uint8): "UINT8", np.dtype(object): "BYTES",
}
TYPES = {name: dtype for dtype, name in NAMES.items()}


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


class Response:
    def __init__(self, output_tensors=(), error=None):
        assert error is None, error
        self.tensors = list(output_tensors)


def utilities(version):
    module = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse = Tensor, Response
    module.get_input_tensor_by_name = lambda request, name: Tensor(name, request[name].copy())
    module.get_model_dir = lambda: version
    named = lambda config, part, name: next(tensor for tensor in config[part] if tensor["name"] == name)
    module.get_output_config_by_name = lambda config, name: named(config, "output", name)
    module.triton_string_to_numpy = lambda text: object if text == "TYPE_STRING" else TYPES[text[5:]].type
    module.Logger = types.SimpleNamespace(log_info=lambda text: None)
    return module


def head(source):
    model = {"rows": 0, "input": [], "output": [], "parameters": {}}
    for line in source.splitlines():
        if not line.startswith("# "):
            break
        word, *rest = line[2:].split(" ")
        if word == "rows":
            model["rows"] = int(rest[0])
        elif word == "parameter":
            model["parameters"][rest[0]] = {"string_value": " ".join(rest[1:])}
        else:
            sizes = rest[2 : rest.index("reshape")] if "reshape" in rest else rest[2:]
            model[word].append((rest[0], rest[1], [int(size) for size in sizes]))
    return model


def picture(random):
    """A PNG, which all libraries decode alike."""
    from PIL import Image

    height, width = random.integers(20, 400, 2)
    slope = np.linspace(0, 200, width)[None, :, None] + np.linspace(0, 40, height)[:, None, None]
    pixels = (slope + random.integers(0, 15, (height, width, 3))).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def sound(random):
    """A WAV file of one channel with 16 bits, which all libraries decode alike."""
    import wave

    samples = (random.normal(0, 3000, int(random.integers(4000, 9000)))).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def request(model, source, random, rows):
    sizes, tensors = {}, {}
    for name, datatype, dims in model["input"]:
        shape = [int(size) if size != -1 else sizes.setdefault(place, int(random.integers(2, 9))) for place, size in enumerate(dims)]
        if model["rows"]:
            shape.insert(0, rows)
        if name in ("image", "audio"):
            make = picture if name == "image" else sound
            if datatype == "UINT8":
                tensors[name] = np.frombuffer(make(random), np.uint8)
                continue
            import base64

            files = [make(random) for _ in range(int(np.prod(shape)))]
            files = [base64.b64encode(file) for file in files] if "b64decode" in source else files
            array = np.empty(len(files), object)
            array[:] = files
            tensors[name] = array.reshape(shape)
        elif datatype == "BYTES":
            text = lambda: json.dumps({"age": float(random.integers(1, 90)), "income": 1.5, "address": {"zone": 2.25}}) if name == "record" else " ".join(
                random.choice(["good", "bad", "other", "Über"], int(random.integers(1, 9))))
            array = np.empty(int(np.prod(shape)), object)
            array[:] = [text().encode() for _ in range(array.size)]
            tensors[name] = array.reshape(shape)
        elif datatype.startswith("FP"):
            values = random.normal(0, 2, shape)
            if name == "det_classes":
                values = np.floor(np.abs(values))
            if name.startswith("samples"):
                values = random.uniform(-1, 1, int(random.integers(2000, 5000)))
            if dims[-1:] == [85]:
                # Boxes that overlap, few with an object.
                values = np.concatenate([random.uniform(50, 600, (1, 25200, 2)), random.uniform(20, 120, (1, 25200, 2)), random.uniform(0, 0.302, (1, 25200, 1)), random.uniform(0, 1, (1, 25200, 80))], 2)
            if dims[-1:] == [8400]:
                # Boxes that overlap, and few scores above a threshold.
                values = np.concatenate([random.uniform(50, 600, (1, 2, 8400)), random.uniform(20, 120, (1, 2, 8400)), random.uniform(0, 0.3005, (1, 80, 8400))], 1)
            tensors[name] = values.astype(TYPES[datatype])
        else:
            high = 2 if "mask" in name else 4
            values = random.integers(0, high, shape).astype(TYPES[datatype])
            if "mask" in name:
                values[:, 0] = 1
            tensors[name] = values
    return tensors


def part(out, data):
    out.write(struct.pack("<I", len(data)) + data)


def write(out, tensors):
    out.write(struct.pack("<I", len(tensors)))
    for name, array in tensors.items():
        part(out, name.encode())
        part(out, NAMES[array.dtype].encode())
        part(out, np.array(array.shape, "<i8").tobytes())
        if array.dtype == object:
            texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1)]
            part(out, b"".join(struct.pack("<I", len(text)) + text for text in texts))
        else:
            part(out, np.ascontiguousarray(array).tobytes())


def play(folder, file):
    source = open(os.path.join(HERE, file), encoding="utf-8").read()
    model = head(source)
    # A model's directory with its files.
    root = os.path.join(folder, "model")
    version = os.path.join(root, "1")
    os.makedirs(version, exist_ok=True)
    shutil.copytree(os.path.join(HERE, "files"), version, dirs_exist_ok=True)
    sys.modules["triton_python_backend_utils"] = utilities(version)
    space = {"__name__": "1.model", "__file__": os.path.join(version, "model.py")}
    try:
        exec(compile(source, file, "exec"), space)
    except ImportError as error:
        print(file, "is not played:", error)
        return
    instance = space["TritonPythonModel"]()
    tensor = lambda name, datatype, dims: {"name": name, "data_type": "TYPE_STRING" if datatype == "BYTES" else "TYPE_" + datatype, "dims": dims}
    config = {part: [tensor(*each) for each in model[part]] for part in ("input", "output")}
    config["parameters"] = model["parameters"]
    if hasattr(instance, "initialize"):
        instance.initialize({"model_config": json.dumps(config), "model_repository": root, "model_version": "1"})
    random = np.random.default_rng(7)
    with open(os.path.join(folder, file.replace(".py", ".cases")), "wb") as out:
        for rows in (1, ROWS, 1):
            if rows > 1 and not model["rows"]:
                continue
            inputs = request(model, source, random, rows)
            (response,) = instance.execute([inputs])
            write(out, inputs)
            write(out, {tensor.name: np.asarray(tensor.array) for tensor in response.tensors})


for file in sys.argv[2:]:
    play(sys.argv[1], file)
