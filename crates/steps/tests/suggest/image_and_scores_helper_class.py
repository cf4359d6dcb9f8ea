# rows 8
# input logits FP32 2
# output label BYTES 1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import os
import torch
from transformers import AutoConfig


class Labeler:
    def __init__(self, config):
        self.id2label = config.id2label

    def __call__(self, scores):
        return [self.id2label[i.item()] for i in scores.argmax(-1)]


class TritonPythonModel:
    def initialize(self, args):
        self.labeler = Labeler(AutoConfig.from_pretrained(os.path.dirname(__file__)))

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            labels = np.array(self.labeler(torch.from_numpy(logits)), dtype=object)[:, None]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("label", labels)]))
        return responses
