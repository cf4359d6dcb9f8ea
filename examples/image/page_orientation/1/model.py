"""The way up of a page: a classifier in ONNX Runtime, between Pillow and numpy."""

import io
import json
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from PIL import Image

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
TOP_K = 2


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), providers=["CPUExecutionProvider"])
        with open(os.path.join(folder, "labels.txt"), encoding="utf-8") as file:
            self.labels = np.array(file.read().splitlines(), dtype=object)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        # [rows, 1] of bytes objects, each a file.
        files = pb_utils.get_input_tensor_by_name(request, "picture").as_numpy()
        pixels = np.stack([self.prepare(file) for file in files[:, 0]])
        (probabilities,) = self.session.run(None, {"x": pixels})
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP_K]
        scores = np.take_along_axis(probabilities, best, axis=1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("labels", self.labels[best]), pb_utils.Tensor("scores", scores)])

    def prepare(self, file):
        image = Image.open(io.BytesIO(file)).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
        return pixels.transpose(2, 0, 1)
