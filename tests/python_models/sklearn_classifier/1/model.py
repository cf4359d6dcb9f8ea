"""A classifier of scikit-learn, trained as it is loaded."""

import numpy as np
import triton_python_backend_utils as pb_utils
from sklearn.neighbors import KNeighborsClassifier


class TritonPythonModel:
    def initialize(self, args):
        points = np.array([[0, 0], [0, 1], [5, 5], [5, 6]], dtype=np.float32)
        self.model = KNeighborsClassifier(n_neighbors=1).fit(points, [0, 0, 1, 1])

    def execute(self, requests):
        responses = []
        for request in requests:
            features = pb_utils.get_input_tensor_by_name(request, "features").as_numpy()
            classes = self.model.predict(features).reshape(-1, 1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("class", classes)]))
        return responses
