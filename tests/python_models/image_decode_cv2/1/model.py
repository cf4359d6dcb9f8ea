"""The preprocessing of a detector by OpenCV: encoded images as strings, to pixels of a fixed side and their scale."""

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils

SIDE = 8


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            raw_images = pb_utils.get_input_tensor_by_name(request, "raw_image").as_numpy()
            images, scales = [], []
            for raw_image in raw_images.reshape(-1):
                image = cv2.imdecode(np.frombuffer(raw_image, dtype=np.uint8), cv2.IMREAD_COLOR)
                if image is None:
                    raise pb_utils.TritonModelException("cannot decode the image")
                image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
                height, width = image.shape[:2]
                images.append(cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_NEAREST))
                scales.append([SIDE / width, SIDE / height])
            tensors = [
                pb_utils.Tensor("image", np.stack(images)),
                pb_utils.Tensor("scale", np.array(scales, dtype=np.float32)),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
