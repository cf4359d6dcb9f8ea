# rows 0
# input samples FP32 1 -1
# output features FP32 -1 23
import torch
import torchaudio.compliance.kaldi as kaldi
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            samples = pb_utils.get_input_tensor_by_name(request, "samples").as_numpy()
            features = kaldi.fbank(torch.from_numpy(samples), dither=1.0)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("features", features.numpy())]))
        return responses
