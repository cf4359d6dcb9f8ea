# rows 0
# input image UINT8 -1
# output pixels FP32 1 3 224 224
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import io
from PIL import Image


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            image = Image.open(io.BytesIO(data.tobytes()))
            image = np.array(image.resize((224, 224))) / 255.0
            image = (image - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
            image = np.expand_dims(image.transpose((2, 0, 1)), axis=0).astype(np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", image)]))
        return responses
