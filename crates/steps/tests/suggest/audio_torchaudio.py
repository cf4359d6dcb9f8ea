# rows 0
# input audio BYTES 1
# output samples FP32 -1
import io

import torchaudio
import triton_python_backend_utils as pb_utils

SAMPLE_RATE = 16000


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()[0]
            waveform, rate = torchaudio.load(io.BytesIO(raw))
            waveform = torchaudio.functional.resample(waveform, rate, SAMPLE_RATE)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("samples", waveform.squeeze(0).numpy())]))
        return responses
