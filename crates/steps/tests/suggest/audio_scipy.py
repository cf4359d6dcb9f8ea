# rows 0
# input samples_8k FP32 -1
# output samples FP32 -1
import numpy as np
import triton_python_backend_utils as pb_utils
from scipy.signal import resample_poly


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            samples = pb_utils.get_input_tensor_by_name(request, "samples_8k").as_numpy()
            samples = resample_poly(samples, 16000, 8000)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("samples", samples)]))
        return responses
