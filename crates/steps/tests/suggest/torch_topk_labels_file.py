# rows 0
# input logits FP32 1 3
# output labels BYTES 1 2
# output probabilities FP32 1 2
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import os
import torch
import torch.nn.functional as F


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "labels.txt")
        with open(path) as f:
            self.labels = [line.strip() for line in f.readlines()]
        self.k = 2

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "logits").as_numpy())
            with torch.no_grad():
                probs = F.softmax(logits, dim=1)
            values, indices = torch.topk(probs, self.k)
            names = [self.labels[i] for i in indices[0].tolist()]
            responses.append(pb_utils.InferenceResponse(output_tensors=[
                pb_utils.Tensor("labels", np.array([names], dtype=object)),
                pb_utils.Tensor("probabilities", values.cpu().numpy()),
            ]))
        return responses
