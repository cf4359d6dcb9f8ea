# rows 0
# input audio BYTES 1
# output features FP32 -1 80
import io

import kaldi_native_fbank as knf
import numpy as np
import soundfile as sf
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        opts = knf.FbankOptions()
        opts.frame_opts.dither = 0
        opts.frame_opts.samp_freq = 16000
        opts.frame_opts.snip_edges = False
        opts.mel_opts.num_bins = 80
        self.opts = opts

    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()[0]
            samples, rate = sf.read(io.BytesIO(raw), dtype="float32")
            fbank = knf.OnlineFbank(self.opts)
            fbank.accept_waveform(16000, (samples * 32768).tolist())
            fbank.input_finished()
            frames = [fbank.get_frame(i) for i in range(fbank.num_frames_ready)]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("features", np.stack(frames))]))
        return responses
