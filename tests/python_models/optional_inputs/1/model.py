"""Says which inputs a request brought, with the defaults of those that it did not."""

import numpy as np
import triton_python_backend_utils as pb_utils


def get_value(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().item()


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            names = sorted(tensor.name() for tensor in request.inputs())
            temperature = get_value(request, "temperature", 1.0)
            stop = get_value(request, "stop", False)
            seen = np.array([*names, f"temperature {temperature}", f"stop {stop}"], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("seen", seen)]))
        return responses
