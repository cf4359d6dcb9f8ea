# rows 4
# input image BYTES 1
# output pixels FP32 3 224 224
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import io
from PIL import Image


class TritonPythonModel:
    def initialize(self, args):
        self.mean = np.array([0.485, 0.456, 0.406], dtype=np.float32)
        self.std = np.array([0.229, 0.224, 0.225], dtype=np.float32)

    def preprocess(self, data):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        image = image.resize((224, 224), Image.BILINEAR)
        x = np.array(image).astype(np.float32) / 255.0
        x = (x - self.mean) / self.std
        return np.transpose(x, (2, 0, 1))

    def execute(self, requests):
        responses = []
        for request in requests:
            images = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            batch = [self.preprocess(row[0]) for row in images]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", np.stack(batch))]))
        return responses
