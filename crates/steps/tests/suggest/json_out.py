# rows 8
# input logits FP32 3
# output result BYTES 1
import json
import numpy as np
import triton_python_backend_utils as pb_utils


LABELS = ["cat", "dog", "eel"]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            results = []
            for row in logits:
                e = np.exp(row - row.max())
                probs = e / e.sum()
                index = int(np.argmax(probs))
                results.append(json.dumps({"label": LABELS[index], "score": float(probs[index]), "probs": probs.tolist()}).encode("utf-8"))
            out = np.array(results, dtype=object).reshape((-1, 1))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("result", out)]))
        return responses
