"""Sends numbers until its client has gone, by the sender and by the request, and says in the log which saw it."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            limit = pb_utils.get_input_tensor_by_name(request, "limit_ms").as_numpy()[0] / 1000
            sender = request.get_response_sender()
            start, count = time.monotonic(), 0
            while time.monotonic() - start < limit:
                if sender.is_cancelled():
                    pb_utils.Logger.log_info(f"the stream is cancelled, says the request too: {request.is_cancelled()}")
                    break
                count += 1
                looks = pb_utils.Tensor("looks", np.array([count], dtype=np.int32))
                sender.send(pb_utils.InferenceResponse([looks]))
                time.sleep(0.02)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
