# rows 0
# input image UINT8 -1
# output pixels FP32 1 3 640 640
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import cv2


def letterbox(img, new_shape=(640, 640), color=(114, 114, 114)):
    shape = img.shape[:2]
    r = min(new_shape[0] / shape[0], new_shape[1] / shape[1])
    new_unpad = int(round(shape[1] * r)), int(round(shape[0] * r))
    dw, dh = new_shape[1] - new_unpad[0], new_shape[0] - new_unpad[1]
    dw /= 2
    dh /= 2
    if shape[::-1] != new_unpad:
        img = cv2.resize(img, new_unpad, interpolation=cv2.INTER_LINEAR)
    top, bottom = int(round(dh - 0.1)), int(round(dh + 0.1))
    left, right = int(round(dw - 0.1)), int(round(dw + 0.1))
    return cv2.copyMakeBorder(img, top, bottom, left, right, cv2.BORDER_CONSTANT, value=color)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            img = letterbox(cv2.imdecode(data, cv2.IMREAD_COLOR))
            img = img[:, :, ::-1].transpose(2, 0, 1)
            img = np.ascontiguousarray(img).astype(np.float32)
            img /= 255.0
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("pixels", img[None])]))
        return responses
