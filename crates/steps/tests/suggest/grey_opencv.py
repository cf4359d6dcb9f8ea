# rows 0
# input image BYTES 1
# output pixels FP32 1 1 -1 -1
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()[0]
            line = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
            line = (line.astype(np.float32) - 127.5) / 127.5
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", line[np.newaxis, np.newaxis])]))
        return responses
