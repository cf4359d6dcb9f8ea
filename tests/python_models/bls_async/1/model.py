"""Asks a slow model twice at once and adds what comes."""

import asyncio
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            start = time.monotonic()
            calls = [
                pb_utils.InferenceRequest(
                    model_name="slow", requested_output_names=["y"], inputs=request.inputs()
                ).async_exec()
                for _ in range(2)
            ]
            answers = await asyncio.gather(*calls)
            for answer in answers:
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
            y = sum(pb_utils.get_output_tensor_by_name(answer, "y").as_numpy() for answer in answers)
            elapsed = np.array([(time.monotonic() - start) * 1000], dtype=np.int32)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("y", y.astype(np.int32)), pb_utils.Tensor("elapsed_ms", elapsed)]
                )
            )
        return responses
