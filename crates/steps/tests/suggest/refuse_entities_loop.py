# rows 0
# input logits FP32 -1 5
# input offsets INT64 -1 2
# input text BYTES 1
# output entities BYTES 1
import json

import numpy as np
import triton_python_backend_utils as pb_utils

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            offsets = pb_utils.get_input_tensor_by_name(request, "offsets").as_numpy()
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
            entities, current = [], None
            for place, (start, end) in zip(np.argmax(logits, axis=-1), offsets):
                label = LABELS[place]
                if label.startswith("B-"):
                    current = {"label": label[2:], "start": int(start), "end": int(end)}
                    entities.append(current)
                elif label.startswith("I-") and current is not None:
                    current["end"] = int(end)
                else:
                    current = None
            for entity in entities:
                entity["word"] = text[entity["start"]:entity["end"]]
            found = np.array([json.dumps(entities)], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("entities", found)]))
        return responses
