# rows 0
# input image BYTES 1
# output pixel_values FP32 1 3 224 224
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import io
import os
from PIL import Image
from transformers import AutoImageProcessor


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.dirname(os.path.abspath(__file__))
        self.processor = AutoImageProcessor.from_pretrained(path)

    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()[0]
            image = Image.open(io.BytesIO(raw)).convert("RGB")
            inputs = self.processor(images=image, return_tensors="np")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixel_values", inputs["pixel_values"])]))
        return responses
