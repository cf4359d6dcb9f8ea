# rows 0
# input output0 FP32 1 25200 85
# output boxes FP32 -1 4
# output scores FP32 -1
# output classes INT64 -1
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils

CONF_THRESH = 0.25
IOU_THRESHOLD = 0.45


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            prediction = pb_utils.get_input_tensor_by_name(request, "output0").as_numpy()[0]
            # Boxes without an object are dropped before anything is computed.
            prediction = prediction[prediction[:, 4] > CONF_THRESH]
            class_scores = prediction[:, 5:] * prediction[:, 4:5]
            scores = np.max(class_scores, axis=1)
            class_ids = np.argmax(class_scores, axis=1)
            xywh = np.stack([
                prediction[:, 0] - prediction[:, 2] / 2,
                prediction[:, 1] - prediction[:, 3] / 2,
                prediction[:, 2],
                prediction[:, 3],
            ], axis=1)
            keep = scores > CONF_THRESH
            xywh, scores, class_ids = xywh[keep], scores[keep], class_ids[keep]
            indices = cv2.dnn.NMSBoxes(xywh.tolist(), scores.tolist(), CONF_THRESH, IOU_THRESHOLD)
            responses.append(pb_utils.InferenceResponse(output_tensors=[
                pb_utils.Tensor("boxes", xywh[indices].astype(np.float32)),
                pb_utils.Tensor("scores", scores[indices].astype(np.float32)),
                pb_utils.Tensor("classes", class_ids[indices].astype(np.int64)),
            ]))
        return responses
