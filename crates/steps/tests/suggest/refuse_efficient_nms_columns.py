# rows 0
# input num_dets INT32 1 1
# input det_boxes FP32 1 100 4
# input det_scores FP32 1 100
# input det_classes FP32 1 100
# output boxes FP32 -1 4
# output scores FP32 -1
# output classes FP32 -1
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "num_dets").as_numpy()[0, 0])
            parts = []
            for name, output in (("det_boxes", "boxes"), ("det_scores", "scores"), ("det_classes", "classes")):
                part = pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, :count]
                parts.append(pb_utils.Tensor(output, part))
            responses.append(pb_utils.InferenceResponse(parts))
        return responses
