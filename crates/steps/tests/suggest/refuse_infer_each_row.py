# rows 8
# input x FP32 4
# output y FP32 3
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = []
            for x in pb_utils.get_input_tensor_by_name(request, "x").as_numpy():
                call = pb_utils.InferenceRequest(
                    model_name="network", requested_output_names=["logits"], inputs=[pb_utils.Tensor("in", x[None])]
                )
                rows.append(pb_utils.get_output_tensor_by_name(call.exec(), "logits").as_numpy()[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.stack(rows))]))
        return responses
