# rows 8
# input logits FP32 3
# output label BYTES 1
# output score FP32 1
import json
import numpy as np
import triton_python_backend_utils as pb_utils


CLASSES = ["cat", "dog", "eel"]


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = json.loads(args["model_config"])

    def softmax(self, x):
        e = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return e / np.sum(e, axis=-1, keepdims=True)

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            probs = self.softmax(logits)
            best = np.argmax(probs, axis=1)
            labels = np.array([[CLASSES[i]] for i in best], dtype=np.object_)
            scores = np.max(probs, axis=1).reshape(-1, 1)
            responses.append(pb_utils.InferenceResponse(output_tensors=[
                pb_utils.Tensor("label", labels),
                pb_utils.Tensor("score", scores),
            ]))
        return responses
