# rows 0
# input logits FP32 1 3
# output result BYTES 1
# parameter threshold 0.6
import json
import numpy as np
import triton_python_backend_utils as pb_utils


NAMES = {0: "toxic", 1: "insult", 2: "threat"}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.threshold = float(config["parameters"]["threshold"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()[0]
            probs = sigmoid(logits)
            found = []
            for i, p in enumerate(probs):
                if p > self.threshold:
                    found.append({"label": NAMES[i], "score": round(float(p), 4)})
            text = json.dumps({"labels": found, "version": 1})
            out = pb_utils.Tensor("result", np.array([text], dtype=object))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
