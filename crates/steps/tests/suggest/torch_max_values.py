# rows 8
# input logits FP32 3
# output score FP32 1
# output index INT64 1
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sigmoid = torch.nn.Sigmoid()

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = torch.as_tensor(pb_utils.get_input_tensor_by_name(request, "logits").as_numpy())
            best = torch.max(self.sigmoid(logits), dim=1, keepdim=True)
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("score", best.values.numpy()),
                pb_utils.Tensor("index", best.indices.numpy()),
            ]))
        return responses
