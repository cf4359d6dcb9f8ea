"""Metrics of a model: `MetricFamily` and `Metric`."""

from __future__ import annotations

import enum
from struct import Struct

import deuteron_channel as channel
from deuteron_channel import U16, U32, frame, str16, str32
from deuteron_control import ask
from deuteron_tensor import TritonModelException, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

UPDATE = Struct("<IBd")
INCREMENT, SET, OBSERVE = 0, 1, 2
DROP_FAMILY = b"\0"
BUCKETS_MAX = 65_535
LABELS_MAX = 256


class MetricKind(enum.IntEnum):
    """Kind of a family's metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __str__(self):
        return "MetricKind." + self.name


MetricKind.__module__ = "c_python_backend_utils"

# Methods that a kind does not have, in the words of Triton's core.
UNSUPPORTED = {
    (MetricKind.COUNTER, SET): "Set",
    (MetricKind.HISTOGRAM, SET): "Set",
    (MetricKind.HISTOGRAM, INCREMENT): "Increment",
    (MetricKind.COUNTER, OBSERVE): "Observe",
    (MetricKind.GAUGE, OBSERVE): "Observe",
}


class FamilyState:
    """State of a family and of its metrics."""

    __slots__ = ("kind", "id", "is_deleted")


class MetricFamily:
    """A family of metrics of one name. Its metrics end with it."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_state", "__weakref__")

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(name, str) or not isinstance(description, str) or not isinstance(kind, MetricKind):
            raise refuse(
                "__init__()",
                "c_python_backend_utils.MetricFamily(name: str, description: str, kind: c_python_backend_utils.MetricKind)",
                name,
                description,
                kind,
            )
        state = FamilyState()
        state.kind = kind
        state.is_deleted = False
        try:
            state.id = ask(channel.METRIC_FAMILY, bytes((kind,)), str16(name), str16(description))
        except (TritonModelException, ValueError) as error:
            raise TritonModelException("Error when creating MetricFamily: " + str(error)) from None
        self._state = state

    def Metric(self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None) -> Metric:
        """A metric with these labels. A histogram needs the upper bounds of its buckets."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None:
            if not isinstance(buckets, list):
                raise TritonModelException("Failed to create metric. Buckets must be a list.")
            if self._state.kind != MetricKind.HISTOGRAM:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        elif self._state.kind == MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        return Metric._of(self._state, labels or {}, [float(bound) for bound in buckets or ()])

    def __del__(self):
        try:
            state = self._state
        except AttributeError:
            return
        state.is_deleted = True
        channel.process.aux.writer.send_last_word(frame(channel.METRIC_DROP, DROP_FAMILY, U32.pack(state.id)))


class Metric:
    """One metric of a family."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_family", "_id", "__weakref__")

    def __init__(self):
        raise TypeError("c_python_backend_utils.Metric: No constructor defined!")

    @classmethod
    def _of(cls, family, labels, buckets):
        for name, value in labels.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TritonModelException(
                    "Error when creating Metric: labels must be text, found " + repr(name) + ": " + repr(value)
                )
        if len(labels) > LABELS_MAX or len(buckets) > BUCKETS_MAX:
            raise TritonModelException(
                "Error when creating Metric: at most " + str(LABELS_MAX) + " labels and " + str(BUCKETS_MAX) + " buckets"
            )
        import json

        bounds = Struct("<" + str(len(buckets)) + "d").pack(*buckets)
        text = json.dumps(labels, ensure_ascii=False)
        metric = cls.__new__(cls)
        metric._family = family
        try:
            metric._id = ask(channel.METRIC, U32.pack(family.id), str32(text), U16.pack(len(buckets)), bounds)
        except TritonModelException as error:
            raise TritonModelException("Error when creating Metric: " + str(error)) from None
        return metric

    def increment(self, value: float) -> None:
        """Adds to a counter or gauge."""
        self._update("Failed to increment metric value: ", INCREMENT, value)

    def set(self, value: float) -> None:
        """Sets a gauge."""
        self._update("Failed to set metric value: ", SET, value)

    def observe(self, value: float) -> None:
        """Adds a value to a histogram."""
        self._update("Failed to observe metric value: ", OBSERVE, value)

    def value(self) -> float:
        """The value of a counter or gauge. Asks the server."""
        what = "Failed to get metric value: "
        self._check_family(what)
        if self._family.kind == MetricKind.HISTOGRAM:
            raise self._failure(what, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value")
        try:
            return ask(channel.METRIC_VALUE, U32.pack(self._id))
        except TritonModelException as error:
            raise TritonModelException(what + str(error)) from None

    def _update(self, what, operation, value):
        if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
            raise refuse(what.split()[2] + "()", "(self, arg0: float) -> None", value)
        value = float(value)
        self._check_family(what)
        kind = self._family.kind
        if (kind, operation) in UNSUPPORTED:
            raise self._failure(
                what, "TRITONSERVER_METRIC_KIND_" + kind.name + " does not support " + UNSUPPORTED[kind, operation]
            )
        if kind == MetricKind.COUNTER and value < 0:
            raise self._failure(
                what, "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        channel.process.aux.writer.send(frame(channel.METRIC_UPDATE, UPDATE.pack(self._id, operation, value)))

    def _check_family(self, what):
        if self._family.is_deleted:
            raise TritonModelException(
                what + "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
                "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )

    @staticmethod
    def _failure(what, text):
        name = channel.process.name
        return TritonModelException(what + "Failed to process the request for model '" + name + "', message: " + text)
