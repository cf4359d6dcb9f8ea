"""A network of PyTorch on tensors that cross by DLPack, both ways."""

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


class TritonPythonModel:
    def initialize(self, args):
        kind, device = args["model_instance_kind"], args["model_instance_device_id"]
        self.device = torch.device(f"cuda:{device}" if kind == "GPU" else "cpu")
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(0.5)
        self.model = self.model.to(self.device).eval()

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT")
            with torch.no_grad():
                result = self.model(from_dlpack(tensor.to_dlpack()).to(self.device)).cpu()
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUTPUT", to_dlpack(result))])
            )
        return responses
