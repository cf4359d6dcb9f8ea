# rows 0
# input audio BYTES 1
# output features FP32 1 -1 80
import io

import torchaudio
import torchaudio.compliance.kaldi as kaldi
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()[0]
            waveform, rate = torchaudio.load(io.BytesIO(raw))
            waveform = torchaudio.functional.resample(waveform, rate, 16000)
            waveform = waveform * (1 << 15)
            features = kaldi.fbank(waveform, num_mel_bins=80, frame_length=25, frame_shift=10, dither=0.0,
                                   energy_floor=0.0, sample_frequency=16000, subtract_mean=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("features", features.unsqueeze(0).numpy())]))
        return responses
