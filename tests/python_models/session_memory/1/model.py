"""Remembers what each sequence has brought, by its correlation id, and forgets it at its end."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sessions = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            def control(name):
                return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]

            session = request.correlation_id()
            if control("START"):
                self.sessions[session] = []
            history = self.sessions.setdefault(session, [])
            history.append(int(control("INPUT")))
            told = f"{session} {control('CORRID')} flags {request.flags()}"
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("OUTPUT", np.array([history], dtype=np.int32)),
                        pb_utils.Tensor("CORRELATION", np.array([[told]], dtype=np.object_)),
                    ]
                )
            )
            if control("END"):
                del self.sessions[session]
        return responses
