# rows 0
# input x FP32 4
# output y FP32 3
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            call = pb_utils.InferenceRequest("network", inputs=[pb_utils.Tensor("in", x)])
            other = pb_utils.InferenceRequest(
                model_name="network", requested_output_names=["logits"], inputs=[pb_utils.Tensor("in", x)]
            ).exec()
            y = pb_utils.get_output_tensor_by_name(other, "logits").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
