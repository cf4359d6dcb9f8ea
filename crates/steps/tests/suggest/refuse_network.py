# rows 0
# input url BYTES 1
# output pixels FP32 1 3 224 224
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import io
import requests as web
from PIL import Image


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            url = pb_utils.get_input_tensor_by_name(request, "url").as_numpy()[0].decode()
            image = Image.open(io.BytesIO(web.get(url, timeout=5).content)).convert("RGB")
            pixels = np.asarray(image.resize((224, 224), Image.BICUBIC), dtype=np.float32) / 255
            pixels = pixels.transpose(2, 0, 1)[None]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", pixels)]))
        return responses
