# rows 0
# input num_dets INT32 1 1
# input det_boxes FP32 1 100 4
# input det_scores FP32 1 100
# input det_classes INT32 1 100
# output boxes FP32 -1 4
# output scores FP32 -1
# output classes INT32 -1
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            get = lambda name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            count = int(get("num_dets")[0][0])
            boxes = get("det_boxes")[0][:count]
            scores = get("det_scores")[0, :count]
            classes = get("det_classes")[0, :count]
            outputs = [("boxes", boxes), ("scores", scores), ("classes", classes)]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in outputs]))
        return responses
