"""A feature store in memory: rows of two CSV files of the model's directory, zeros for what is not in them."""

import csv
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.users = read(os.path.join(args["model_repository"], "users.csv"), int)
        self.items = read(os.path.join(args["model_repository"], "items.csv"), str)

    def execute(self, requests):
        responses = []
        for request in requests:
            users = pb_utils.get_input_tensor_by_name(request, "user_id").as_numpy().reshape(-1).tolist()
            items = pb_utils.get_input_tensor_by_name(request, "item").as_numpy().reshape(-1)
            items = [item.decode() for item in items]
            nothing = np.zeros(2, dtype=np.float32)
            features = np.stack(
                [
                    np.concatenate([self.users.get(user, nothing), self.items.get(item, nothing)])
                    for user, item in zip(users, items)
                ]
            )
            known = np.array([[user in self.users, item in self.items] for user, item in zip(users, items)])
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("features", features), pb_utils.Tensor("known", known)])
            )
        return responses


def read(path, key):
    with open(path, newline="") as file:
        return {key(row[0]): np.array(row[1:], dtype=np.float32) for row in csv.reader(file)}
