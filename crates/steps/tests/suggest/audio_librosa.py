# rows 0
# input audio BYTES 1
# output samples FP32 -1
import io

import librosa
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()[0]
            samples, _ = librosa.load(io.BytesIO(raw), sr=16000)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("samples", samples)]))
        return responses
