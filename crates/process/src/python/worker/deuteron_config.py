"""`ModelConfig`, which `auto_complete_config` completes."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


class ModelConfig:
    """The configuration of a model. What it says already may be added to, but not changed."""

    __module__ = "triton_python_backend_utils"

    def __init__(self, model_config: str) -> None:
        self._model_config = json.loads(model_config)

    def as_dict(self) -> Dict[str, Any]:
        """The configuration, as it is now."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the largest batch. ValueError if the configuration has a larger one."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size " + str(configured)
                + ", but in auto-complete-config function for model '" + self._model_config["name"]
                + "' specified max_batch_size " + str(max_batch_size)
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Has the server form batches. ValueError if the model is an ensemble or batches sequences."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    "Configuration specified scheduling_choice as '" + scheduler
                    + "', but auto-complete-config function for model '" + self._model_config["name"]
                    + "' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Dict[str, Any]) -> None:
        """Adds an input: `name`, `data_type`, `dims`, and `optional` if wanted. ValueError if the configuration differs."""
        self._add("input", input, ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output: Dict[str, Any]) -> None:
        """Adds an output: `name`, `data_type`, `dims`. ValueError if the configuration differs."""
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Sets `decoupled`. ValueError if the configuration says the opposite."""
        name = self._model_config["name"]
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    "model transaction property in auto-complete-config function for model '" + name
                    + "' contains property other than 'decoupled'."
                )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            wanted = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", wanted) != wanted:
                raise ValueError(
                    "trying to change decoupled property in auto-complete-config for model '" + name
                    + "', which is already set to '" + str(policy["decoupled"]) + "'."
                )
            policy["decoupled"] = wanted

    def _add(self, side, given, keys, listed):
        model = self._model_config["name"]
        for key in given:
            if key not in keys:
                raise ValueError(
                    side + " '" + given["name"] + "' in auto-complete-config function for model '" + model
                    + "' contains property other than " + listed + "."
                )
        for key in keys[:3]:
            if key not in given:
                tensor = side if key == "name" else side + " '" + given["name"] + "'"
                raise ValueError(
                    tensor + " in auto-complete-config function for model '" + model + "' is missing '" + key
                    + "' property."
                )
        for configured in self._model_config.setdefault(side, []):
            if configured["name"] == given["name"]:
                self._check(side, configured, given)
                configured.update(given)
                return
        self._model_config[side].append(given)

    def _check(self, side, configured, given):
        model, tensor = self._model_config["name"], given["name"]
        if configured["data_type"] not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(
                "unable to load model '" + model + "', configuration expects datatype " + configured["data_type"]
                + " for " + side + " '" + tensor + "', model provides " + given["data_type"]
            )
        for key in ("dims", "optional"):
            differs = key in given and configured.get(key, given[key]) != given[key]
            # Dims that are not there yet, or empty, say nothing.
            if differs and (key != "dims" or configured["dims"]):
                raise ValueError(
                    "model '" + model + "', tensor '" + tensor + "': the model expects " + key + " " + str(given[key])
                    + " but the model configuration specifies " + key + " " + str(configured[key])
                )
