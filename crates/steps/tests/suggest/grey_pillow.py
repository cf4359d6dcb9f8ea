# rows 8
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
            images = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            digits = []
            for row in images:
                digit = Image.open(io.BytesIO(row[0])).convert("L").resize((28, 28), Image.BILINEAR)
                digits.append(np.expand_dims((np.asarray(digit, dtype=np.float32) / 255.0 - 0.1307) / 0.3081, 0))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", np.stack(digits))]))
        return responses
