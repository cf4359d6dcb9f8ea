"""Works until it is done or its client has gone, and says in the log which."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            limit = pb_utils.get_input_tensor_by_name(request, "limit_ms").as_numpy()[0] / 1000
            start, looks = time.monotonic(), 0
            while time.monotonic() - start < limit:
                looks += 1
                if request.is_cancelled():
                    waited = int((time.monotonic() - start) * 1000)
                    pb_utils.Logger.log_info(f"saw the cancellation, and again: {request.is_cancelled()}, {waited} ms")
                    error = pb_utils.TritonError("the client left", pb_utils.TritonError.CANCELLED)
                    responses.append(pb_utils.InferenceResponse(error=error))
                    break
                time.sleep(0.01)
            else:
                looks = pb_utils.Tensor("looks", np.array([looks], dtype=np.int32))
                responses.append(pb_utils.InferenceResponse([looks]))
        return responses
