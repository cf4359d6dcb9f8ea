# rows 0
# input image BYTES 1
# output pixels FP32 1 3 640 640
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import base64
import cv2


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()[0].decode("utf-8")
            buffer = np.frombuffer(base64.b64decode(text), np.uint8)
            img = cv2.imdecode(buffer, cv2.IMREAD_COLOR)
            img = cv2.cvtColor(img, cv2.COLOR_BGR2RGB)
            img = cv2.resize(img, (640, 640), interpolation=cv2.INTER_LINEAR)
            img = img.astype(np.float32) * (1 / 255.0)
            img = img.transpose(2, 0, 1)[np.newaxis, ...]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", np.ascontiguousarray(img))]))
        return responses
