# rows 8
# input record BYTES 1
# output features FP32 3
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "record").as_numpy()
            rows = []
            for text in texts:
                record = json.loads(text[0].decode("utf-8"))
                rows.append([float(record["age"]), float(record["income"]), float(record["address"]["zone"])])
            features = np.array(rows, dtype=np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("features", features)]))
        return responses
