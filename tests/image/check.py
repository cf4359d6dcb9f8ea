"""Asks the models of examples/image over HTTP and gRPC with tritonclient, and compares the answers with those of their model.py files,
which run here: python check.py FOLDER HTTP GRPC. The last line has the count of answers."""

import importlib.util
import io
import sys
import types

import numpy as np
import tritonclient.grpc
import tritonclient.http
from PIL import Image

folder, http, grpc = sys.argv[1:]


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


utils = types.ModuleType("triton_python_backend_utils")
utils.Tensor = Tensor
utils.InferenceResponse = lambda tensors: {tensor.name: tensor.array for tensor in tensors}
utils.get_input_tensor_by_name = lambda request, name: request[name]
sys.modules[utils.__name__] = utils


def model(name):
    spec = importlib.util.spec_from_file_location(name, f"{folder}/{name}/1/model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded = module.TritonPythonModel()
    loaded.initialize({"model_repository": f"{folder}/{name}", "model_version": "1"})
    return loaded


def pictures():
    """The page upright and turned, and in other formats."""
    page = Image.open(f"{folder}/page.jpg")
    for angle, label in (0, "upright"), (90, "turned left"), (180, "upside down"), (270, "turned right"):
        yield page.rotate(angle, expand=True), {"format": "JPEG", "progressive": angle == 90}, label
    yield page.convert("L"), {"format": "JPEG"}, "upright"
    yield page.convert("CMYK"), {"format": "JPEG"}, "upright"
    yield page.convert("RGBA"), {"format": "PNG"}, "upright"
    yield page.quantize(64), {"format": "PNG"}, "upright"
    yield page, {"format": "WEBP", "quality": 80}, "upright"


models = {name: model(name) for name in ("page_orientation", "page_layout")}
clients = [(module, module.InferenceServerClient(url)) for module, url in ((tritonclient.http, http), (tritonclient.grpc, grpc))]
count = 0
for picture, options, label in pictures():
    file = io.BytesIO()
    picture.save(file, **options)
    for name, python in models.items():
        array = np.array([file.getvalue()], dtype=object).reshape([1, 1] if name == "page_orientation" else [1])
        (want,) = python.execute([{"picture": Tensor("picture", array)}])
        for module, client in clients:
            given = module.InferInput("picture", list(array.shape), "BYTES")
            given.set_data_from_numpy(array)
            answer = client.infer(name, [given])
            labels = [text.decode() for text in answer.as_numpy("labels").ravel()]
            assert labels == want["labels"].ravel().tolist(), (name, options, labels, want["labels"])
            np.testing.assert_allclose(answer.as_numpy("scores"), want["scores"], atol=1e-3)
            if name == "page_layout":
                assert {"text", "title", "figure", "table"} <= set(labels) or label != "upright", labels
                np.testing.assert_allclose(answer.as_numpy("boxes"), want["boxes"], atol=0.2)
            else:
                assert labels[0] == label, (labels, label)
            count += 1
print(count)
