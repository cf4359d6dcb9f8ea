# rows 0
# input output0 FP32 1 25200 85
# output scores FP32 -1
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "output0").as_numpy()[0]
            rows = rows[rows[:, 4] > 0.5]
            scores = (rows[:, 5:] * rows[:, 4:5]).max(axis=1)
            boxes = np.stack([rows[:, 0] - rows[:, 2] / 2, rows[:, 1] - rows[:, 3] / 2, rows[:, 2], rows[:, 3]], axis=1)
            keep = scores > 0.25
            boxes, scores = boxes[keep], scores[keep]
            kept = cv2.dnn.NMSBoxes(boxes.tolist(), scores.tolist(), 0.25, 0.45)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("scores", scores[kept])]))
        return responses
