# rows 8
# input x FP32 4
# output y FP32 4
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            try:
                y = np.fft.rfft(x).real.astype(np.float32)
            except ValueError as error:
                responses.append(pb_utils.InferenceResponse([], error=pb_utils.TritonError(str(error))))
                continue
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
