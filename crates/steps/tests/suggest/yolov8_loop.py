# rows 0
# input output0 FP32 1 84 8400
# output boxes FP32 -1 4
# output scores FP32 -1
# output classes INT64 -1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import cv2


class TritonPythonModel:
    def initialize(self, args):
        self.confidence = 0.25
        self.iou = 0.45

    def postprocess(self, output):
        outputs = np.transpose(np.squeeze(output))
        boxes, scores, class_ids = [], [], []
        for i in range(outputs.shape[0]):
            class_scores = outputs[i][4:]
            max_score = np.amax(class_scores)
            if max_score >= self.confidence:
                class_id = np.argmax(class_scores)
                x, y, w, h = outputs[i][0], outputs[i][1], outputs[i][2], outputs[i][3]
                boxes.append([x - w / 2, y - h / 2, w, h])
                scores.append(max_score)
                class_ids.append(class_id)
        indices = cv2.dnn.NMSBoxes(boxes, scores, self.confidence, self.iou)
        kept = [boxes[i] for i in indices]
        return np.array(kept, dtype=np.float32), np.array([scores[i] for i in indices], dtype=np.float32), np.array([class_ids[i] for i in indices], dtype=np.int64)

    def execute(self, requests):
        responses = []
        for request in requests:
            output = pb_utils.get_input_tensor_by_name(request, "output0").as_numpy()
            boxes, scores, classes = self.postprocess(output)
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("boxes", boxes), pb_utils.Tensor("scores", scores), pb_utils.Tensor("classes", classes)]))
        return responses
