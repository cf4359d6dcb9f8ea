"""Non-maximum suppression of a detector's boxes, in numpy."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.score_threshold = float(parameters["score_threshold"]["string_value"])
        self.iou_threshold = float(parameters["iou_threshold"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            boxes = pb_utils.get_input_tensor_by_name(request, "boxes").as_numpy()
            scores = pb_utils.get_input_tensor_by_name(request, "scores").as_numpy()
            kept = self.nms(boxes, scores)
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("num_detections", np.array([len(kept)], dtype=np.int32)),
                        pb_utils.Tensor("detection_boxes", boxes[kept]),
                        pb_utils.Tensor("detection_scores", scores[kept]),
                    ]
                )
            )
        return responses

    def nms(self, boxes, scores):
        order = [index for index in np.argsort(-scores, kind="stable") if scores[index] >= self.score_threshold]
        kept = []
        for index in order:
            if all(iou(boxes[index], boxes[other]) <= self.iou_threshold for other in kept):
                kept.append(index)
        return np.array(kept, dtype=np.int64)


def iou(one, two):
    top_left, bottom_right = np.maximum(one[:2], two[:2]), np.minimum(one[2:], two[2:])
    shared = np.prod(np.clip(bottom_right - top_left, 0, None))
    return shared / (np.prod(one[2:] - one[:2]) + np.prod(two[2:] - two[:2]) - shared)
