# rows 0
# input output0 FP32 1 25200 85
# output boxes FP32 -1 4
# output scores FP32 -1
# output classes INT64 -1
import torch
import torchvision
import triton_python_backend_utils as pb_utils


def xywh2xyxy(x):
    y = x.clone()
    y[:, 0] = x[:, 0] - x[:, 2] / 2
    y[:, 1] = x[:, 1] - x[:, 3] / 2
    y[:, 2] = x[:, 0] + x[:, 2] / 2
    y[:, 3] = x[:, 1] + x[:, 3] / 2
    return y


class TritonPythonModel:
    def initialize(self, args):
        self.confidence = 0.4
        self.overlap = 0.6

    def execute(self, requests):
        responses = []
        for request in requests:
            output = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "output0").as_numpy())[0]
            scores, classes = (output[:, 4:5] * output[:, 5:]).max(1)
            keep = scores > self.confidence
            boxes, scores, classes = xywh2xyxy(output[:, :4])[keep], scores[keep], classes[keep]
            kept = torchvision.ops.nms(boxes, scores, self.overlap)
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("boxes", boxes[kept].numpy()),
                pb_utils.Tensor("scores", scores[kept].numpy()),
                pb_utils.Tensor("classes", classes[kept].numpy()),
            ]))
        return responses
