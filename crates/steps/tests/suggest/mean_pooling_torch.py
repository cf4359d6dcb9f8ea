# rows 16
# input last_hidden_state FP32 -1 384
# input attention_mask INT64 -1
# output embedding FP32 384
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import torch


def mean_pooling(token_embeddings, attention_mask):
    expanded = attention_mask.unsqueeze(-1).expand(token_embeddings.size()).float()
    return torch.sum(token_embeddings * expanded, 1) / torch.clamp(expanded.sum(1), min=1e-9)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            states = torch.tensor(pb_utils.get_input_tensor_by_name(request, "last_hidden_state").as_numpy())
            mask = torch.tensor(pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy())
            pooled = mean_pooling(states, mask)
            pooled = torch.nn.functional.normalize(pooled, p=2, dim=1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("embedding", pooled.numpy())]))
        return responses
