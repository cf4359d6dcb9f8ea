"""The parts of a page: a PicoDet detector in ONNX Runtime, between OpenCV and numpy."""

import os

import cv2
import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

HEIGHT, WIDTH = 800, 608
STRIDES = [8, 16, 32, 64]
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SCORE_THRESHOLD, IOU_THRESHOLD, BOXES_MAX = 0.4, 0.5, 100


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), providers=["CPUExecutionProvider"])
        with open(os.path.join(folder, "labels.txt"), encoding="utf-8") as file:
            self.labels = file.read().splitlines()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (file,) = pb_utils.get_input_tensor_by_name(request, "picture").as_numpy()
        image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
        pixels = cv2.resize(image, (WIDTH, HEIGHT))
        pixels = ((pixels.astype("float32") * (1 / 255.0) - MEAN) / STD).transpose(2, 0, 1)
        outputs = self.session.run(None, {"image": pixels[None].astype(np.float32)})
        boxes, scores, classes = self.boxes(outputs[:4], outputs[4:])
        boxes = boxes / ([WIDTH, HEIGHT] * 2) * (image.shape[1::-1] * 2)
        labels = np.array([self.labels[index] for index in classes], dtype=object)
        tensors = {"boxes": boxes.astype(np.float32), "scores": scores, "labels": labels}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value[None]) for name, value in tensors.items()])

    def boxes(self, scores, distributions):
        """Corners, scores and classes of all boxes, class after class."""
        corners = np.concatenate([self.corners(stride, rows[0]) for stride, rows in zip(STRIDES, distributions)])
        scores = np.concatenate([rows[0] for rows in scores])
        kept = [(box, index) for index in range(scores.shape[1]) for box in self.suppress(corners, scores[:, index])]
        rows = [box for box, _ in kept]
        classes = [index for _, index in kept]
        return corners[rows].reshape(-1, 4), scores[rows, classes].astype(np.float32), classes

    def corners(self, stride, rows):
        """From the distributions of the distances of each cell's middle to the four sides."""
        across, down = np.meshgrid(np.arange(WIDTH / stride), np.arange(HEIGHT / stride))
        middle = (np.stack([across, down, across, down], axis=-1).reshape(-1, 4) + 0.5) * stride
        powers = np.exp(rows.reshape(-1, 4, 8) - rows.reshape(-1, 4, 8).max(axis=-1, keepdims=True))
        distances = (powers / powers.sum(axis=-1, keepdims=True) * np.arange(8)).sum(axis=-1) * stride
        return middle + [-1, -1, 1, 1] * distances

    def suppress(self, corners, scores):
        """The boxes of a class that no better one overlaps, best first."""
        order = np.flatnonzero(scores > SCORE_THRESHOLD)
        order = order[np.argsort(-scores[order], kind="stable")]
        kept = []
        while len(order) and len(kept) < BOXES_MAX:
            best, order = order[0], order[1:]
            kept.append(best)
            one, others = corners[best], corners[order]
            sides = np.minimum(one[2:], others[:, 2:]) - np.maximum(one[:2], others[:, :2])
            shared = np.clip(sides, 0, None).prod(axis=1)
            areas = (one[2:] - one[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1)
            order = order[shared / (areas - shared + 1e-5) <= IOU_THRESHOLD]
        return kept
