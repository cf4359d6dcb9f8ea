# rows 0
# input audio BYTES 1
# output samples FP32 -1
import io

import librosa
import soundfile
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()[0]
            samples, rate = soundfile.read(io.BytesIO(raw), dtype="float32")
            if rate != 16000:
                samples = librosa.resample(samples, orig_sr=rate, target_sr=16000)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("samples", samples)]))
        return responses
