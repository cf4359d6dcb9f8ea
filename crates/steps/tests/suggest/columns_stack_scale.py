# rows 64
# input age FP32 1
# input income FP32 1
# input zone INT64 1
# output features FP32 3
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.mean = np.array([40.0, 30000.0, 3.5], dtype=np.float32)
        self.std = np.array([12.0, 9000.0, 2.0], dtype=np.float32)

    def execute(self, requests):
        responses = []
        for request in requests:
            columns = [pb_utils.get_input_tensor_by_name(request, name).as_numpy().astype(np.float32) for name in ("age", "income", "zone")]
            features = np.concatenate(columns, axis=1)
            features = (features - self.mean) / self.std
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("features", features)]))
        return responses
