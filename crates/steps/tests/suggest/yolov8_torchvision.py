# rows 0
# input output0 FP32 1 84 8400
# output boxes FP32 -1 4
# output scores FP32 -1
# output classes INT64 -1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import torch
import torchvision


def xywh2xyxy(x):
    y = x.clone()
    y[..., 0] = x[..., 0] - x[..., 2] / 2
    y[..., 1] = x[..., 1] - x[..., 3] / 2
    y[..., 2] = x[..., 0] + x[..., 2] / 2
    y[..., 3] = x[..., 1] + x[..., 3] / 2
    return y


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            prediction = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "output0").as_numpy())[0].T
            boxes = xywh2xyxy(prediction[:, :4])
            scores, classes = prediction[:, 4:].max(dim=1)
            keep = scores > 0.3
            boxes, scores, classes = boxes[keep], scores[keep], classes[keep]
            kept = torchvision.ops.batched_nms(boxes, scores, classes, 0.5)[:100]
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("boxes", boxes[kept].numpy()),
                pb_utils.Tensor("scores", scores[kept].numpy()),
                pb_utils.Tensor("classes", classes[kept].numpy()),
            ]))
        return responses
