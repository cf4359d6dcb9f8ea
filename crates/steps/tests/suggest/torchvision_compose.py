# rows 4
# input image BYTES 1
# output pixels FP32 3 224 224
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import io
import torch
from PIL import Image
from torchvision import transforms


class TritonPythonModel:
    def initialize(self, args):
        self.transform = transforms.Compose([
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ])

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "image")
            tensors = []
            for item in in_0.as_numpy().reshape(-1):
                img = Image.open(io.BytesIO(item)).convert("RGB")
                tensors.append(self.transform(img))
            batch = torch.stack(tensors).numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("pixels", batch)]))
        return responses
