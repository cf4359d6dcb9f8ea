# rows 0
# input num_dets INT32 1 1
# input det_boxes FP32 1 100 4
# input det_scores FP32 1 100
# input det_classes FP32 1 100
# output boxes FP32 -1 4
# output classes FP32 -1
import triton_python_backend_utils as pb_utils

THRESHOLD = 0.5


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "num_dets").as_numpy()[0, 0]
            boxes = pb_utils.get_input_tensor_by_name(request, "det_boxes").as_numpy()[0, :count]
            scores = pb_utils.get_input_tensor_by_name(request, "det_scores").as_numpy()[0, :count]
            classes = pb_utils.get_input_tensor_by_name(request, "det_classes").as_numpy()[0, :count]
            keep = scores >= THRESHOLD
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("boxes", boxes[keep]), pb_utils.Tensor("classes", classes[keep])])
            )
        return responses
