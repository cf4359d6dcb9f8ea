# rows 0
# input image BYTES 1
# output pixels FP32 1 28 28
import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()[0]
            digit = Image.open(io.BytesIO(data)).resize((28, 28), Image.BILINEAR).convert("L")
            digit = np.array(digit).astype(np.float32)[np.newaxis] / 255
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", digit)]))
        return responses
