"""Answers `n` times, of which the one numbered `fail` is an error; then it ends, or raises."""
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        parameters = json.loads(request.parameters())
        prompt = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().reshape(-1)[0]
        sender = request.get_response_sender()
        for index in range(int(parameters.get("n", 1))):
            if parameters.get("fail") == index:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("An Error Occurred")))
                continue
            said = json.dumps(parameters, sort_keys=True)
            texts = [prompt, request.request_id().encode(), said.encode()][: 3 if parameters.get("wide") else 1]
            text = pb_utils.Tensor("TEXT", np.array(texts, dtype=object))
            sender.send(pb_utils.InferenceResponse([text, pb_utils.Tensor("count", np.array([index], np.int32))]))
        if parameters.get("bad"):
            raise ValueError("boom")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
