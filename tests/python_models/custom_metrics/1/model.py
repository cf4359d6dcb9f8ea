"""Metrics of the model's own: a counter with labels, a gauge, and, where the module has it, a histogram."""

import numpy as np
import triton_python_backend_utils as pb_utils

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def increment(model, value):
    model.counter.increment(value)
    return model.counter.value()


@case
def set_gauge(model, value):
    model.gauge.set(value)
    return model.gauge.value()


@case
def lower_gauge(model, value):
    model.gauge.increment(-value)
    return model.gauge.value()


@case
def decrement(model, value):
    model.counter.increment(-value)


@case
def set_counter(model, value):
    model.counter.set(value)


@case
def same_labels_share_a_value(model, value):
    again = model.requests.Metric(labels={"kind": "first", "model": "custom_metrics"})
    again.increment(value)
    return model.counter.value() == again.value()


@case
def same_family_twice(model, value):
    kind = pb_utils.MetricFamily.COUNTER
    again = pb_utils.MetricFamily(name="zoo_requests_total", description="Requests of the zoo", kind=kind)
    return type(again).__name__


@case
def same_name_another_kind(model, value):
    pb_utils.MetricFamily(name="zoo_requests_total", description="Requests", kind=pb_utils.MetricFamily.GAUGE)


@case
def metric_after_its_family(model, value):
    family = pb_utils.MetricFamily(name="zoo_short", description="d", kind=pb_utils.MetricFamily.GAUGE)
    metric = family.Metric(labels={})
    metric.set(1)
    del family
    metric.set(value)


@case
def observe(model, value):
    kind = pb_utils.MetricFamily.HISTOGRAM
    family = pb_utils.MetricFamily(name="zoo_sizes", description="Sizes", kind=kind)
    model.kept = family, family.Metric(labels={"of": "texts"}, buckets=[1.0, 10.0])
    model.kept[1].observe(value)


@case
def histogram_without_buckets(model, value):
    kind = pb_utils.MetricFamily.HISTOGRAM
    pb_utils.MetricFamily(name="zoo_bare", description="d", kind=kind).Metric(labels={})


@case
def counter_with_buckets(model, value):
    model.requests.Metric(labels={"kind": "buckets"}, buckets=[1.0])


@case
def a_label_that_is_no_text(model, value):
    model.requests.Metric(labels={"kind": 1})


@case
def a_wrong_name(model, value):
    pb_utils.MetricFamily(name="no good", description="d", kind=pb_utils.MetricFamily.GAUGE)


class TritonPythonModel:
    def initialize(self, args):
        self.requests = pb_utils.MetricFamily(
            name="zoo_requests_total",
            description="Requests of the zoo",
            kind=pb_utils.MetricFamily.COUNTER,  # or pb_utils.MetricFamily.GAUGE
        )
        self.counter = self.requests.Metric(labels={"model": args["model_name"], "kind": "first"})
        self.family = pb_utils.MetricFamily(
            name="zoo_level", description='A "level" of the \\ zoo', kind=pb_utils.MetricFamily.GAUGE
        )
        self.gauge = self.family.Metric(labels={"unit": 'm"\\\n'})

    def execute(self, requests):
        responses = []
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
            value = pb_utils.get_input_tensor_by_name(request, "value").as_numpy()[0]
            try:
                result = f"{CASES[name](self, float(value))}"
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            result = pb_utils.Tensor("result", np.array([result], dtype=object))
            responses.append(pb_utils.InferenceResponse([result]))
        return responses
