# rows 0
# input audio BYTES 1
# output samples FP32 -1
# output rate INT64 1
import io

import numpy as np
import soundfile as sf
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()[0]
            samples, rate = sf.read(io.BytesIO(raw), dtype="float32")
            if samples.ndim > 1:
                samples = samples.mean(axis=1)
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("samples", samples),
                pb_utils.Tensor("rate", np.array([rate], dtype=np.int64)),
            ]))
        return responses
