"""Tells all that a request says beside its tensors."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            parameters = json.loads(request.parameters())
            before = request.flags()
            request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
            seen = [
                f"request_id {request.request_id()!r}",
                f"correlation_id {request.correlation_id()!r}",
                f"flags {before} {request.flags()}",
                f"timeout {request.timeout()}",
                f"parameters {json.dumps(parameters, sort_keys=True)}",
                f"requested {sorted(request.requested_output_names())}",
                f"trace {request.trace().get_context()!r}",
                f"is_cancelled {request.is_cancelled()}",
                f"inputs {[(tensor.name(), list(tensor.shape())) for tensor in request.inputs()]}",
            ]
            seen = pb_utils.Tensor("seen", np.array(seen, dtype=object))
            responses.append(pb_utils.InferenceResponse([seen]))
        return responses
