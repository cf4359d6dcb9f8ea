# rows 0
# input audio BYTES 1
# output input_features FP32 1 -1 -1
import base64
import io
import os

import soundfile
import triton_python_backend_utils as pb_utils
from transformers import WhisperFeatureExtractor


class TritonPythonModel:
    def initialize(self, args):
        self.extractor = WhisperFeatureExtractor.from_pretrained(os.path.join(os.path.dirname(__file__), "whisper"))

    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()[0]
            samples, rate = soundfile.read(io.BytesIO(base64.b64decode(text)), dtype="float32")
            features = self.extractor(samples, sampling_rate=rate, return_tensors="np")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("input_features", features["input_features"])]))
        return responses
