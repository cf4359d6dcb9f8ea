"""Generates token by token: the words of the prompt from the last to the first, each as a response of its own."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        model_config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(model_config):
            raise pb_utils.TritonModelException("the model must be configured with a decoupled transaction policy")

    def execute(self, requests):
        for request in requests:
            response_sender = request.get_response_sender()
            prompt = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy()[0].decode("utf-8")
            max_tokens = pb_utils.get_input_tensor_by_name(request, "MAX_TOKENS")
            max_tokens = 100 if max_tokens is None else int(max_tokens.as_numpy()[0])
            if max_tokens < 0:
                error = pb_utils.TritonError("MAX_TOKENS is negative", pb_utils.TritonError.INVALID_ARG)
                response_sender.send(
                    pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
                continue
            for index, word in enumerate(reversed(prompt.split()[-max_tokens:] if max_tokens else [])):
                if response_sender.is_cancelled():
                    break
                token = pb_utils.Tensor("TOKEN", np.array([word], dtype=np.object_))
                place = pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32))
                response_sender.send(pb_utils.InferenceResponse([token, place]))
            response_sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
