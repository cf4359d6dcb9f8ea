"""Calls all of the module with wrong arguments and tells what each call raised, line by line.

Of a TypeError the text is left out: it lists signatures, in words of the library that made the binding.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

ARRAY = np.array([1, 2], dtype=np.int32)


def tensor(name="x"):
    return pb_utils.Tensor(name, ARRAY)


def request(**arguments):
    given = {"model_name": "double", "requested_output_names": ["y"], "inputs": [tensor()], **arguments}
    return pb_utils.InferenceRequest(**given)


def tensors():
    new = pb_utils.Tensor
    yield "Tensor()", lambda: new()
    yield "Tensor('x')", lambda: new("x")
    yield "Tensor(None, array)", lambda: new(None, ARRAY)
    yield "Tensor(1, array)", lambda: new(1, ARRAY)
    yield "Tensor('', array)", lambda: new("", ARRAY)
    yield "Tensor('x', None)", lambda: new("x", None)
    yield "Tensor('x', list)", lambda: new("x", [1, 2])
    yield "Tensor('x', 1.5)", lambda: new("x", 1.5)
    yield "Tensor('x', np.float32)", lambda: new("x", np.float32(1))
    yield "Tensor('x', 'text')", lambda: new("x", "text")
    yield "Tensor by keywords", lambda: new(name="x", ndarray=ARRAY)
    yield "Tensor with three arguments", lambda: new("x", ARRAY, 1)
    yield "Tensor of U", lambda: new("x", np.array(["a"]))
    yield "Tensor of S", lambda: new("x", np.array([b"a"])).shape()
    yield "Tensor of complex", lambda: new("x", np.array([1j]))
    yield "Tensor of datetime", lambda: new("x", np.array(["2020-01-01"], dtype="datetime64[D]"))
    yield "Tensor of a structure", lambda: new("x", np.zeros(1, dtype=[("a", "i4")]))
    yield "Tensor of a scalar array", lambda: new("x", np.array(1)).shape()
    yield "Tensor of an empty array", lambda: new("x", np.zeros((0, 3))).shape()
    yield "Tensor of big-endian numbers", lambda: new("x", np.array([1, 2], dtype=">i4")).as_numpy().tolist()
    yield "Tensor of a matrix", lambda: new("x", np.array([[1, 2], [3, 4]]).T).as_numpy().tolist()
    yield "name", lambda: tensor().name()
    yield "shape", lambda: tensor().shape()
    yield "is_cpu", lambda: tensor().is_cpu()
    yield "triton_dtype", lambda: tensor().triton_dtype()
    yield "an attribute that is not there", lambda: tensor().nope


def dlpack():
    new = pb_utils.Tensor.from_dlpack
    yield "from_dlpack()", lambda: new()
    yield "from_dlpack('x', None)", lambda: new("x", None)
    yield "from_dlpack('x', object)", lambda: new("x", object())
    yield "from_dlpack of a tensor", lambda: new("x", tensor("t")).as_numpy().tolist()
    yield "from_dlpack of a capsule", lambda: new("x", tensor("t").to_dlpack()).as_numpy().tolist()
    yield "to numpy", lambda: np.from_dlpack(tensor()).tolist()
    yield "__dlpack_device__", lambda: tuple(int(part) for part in tensor().__dlpack_device__())
    yield "__dlpack__ with a stream", lambda: type(tensor().__dlpack__(stream=None)).__name__
    yield "to_dlpack of strings", lambda: pb_utils.Tensor("x", np.array([b"a"], dtype=object)).to_dlpack()


def responses():
    new = pb_utils.InferenceResponse
    error = pb_utils.TritonError("e")
    yield "InferenceResponse()", lambda: len(new().output_tensors())
    yield "InferenceResponse(None)", lambda: new(None)
    yield "InferenceResponse([None])", lambda: new([None])
    yield "InferenceResponse([tensor, None])", lambda: new([tensor(), None])
    yield "InferenceResponse(['x'])", lambda: new(["x"])
    yield "InferenceResponse(tensor)", lambda: new(tensor())
    yield "InferenceResponse((tensor,))", lambda: len(new((tensor(),)).output_tensors())
    yield "InferenceResponse(output_tensors=[])", lambda: new(output_tensors=[]).has_error()
    yield "InferenceResponse([], None)", lambda: new([], None).has_error()
    yield "InferenceResponse([], 'text')", lambda: new([], "text")
    yield "InferenceResponse(error=error)", lambda: new(error=error).has_error()
    yield "InferenceResponse([], error)", lambda: new([], error).error().message()
    yield "InferenceResponse([tensor], error)", lambda: new([tensor()], error).has_error()
    yield "output_tensors", lambda: [one.name() for one in new([tensor("a"), tensor("b")]).output_tensors()]
    yield "error of a response without", lambda: new([]).error()
    yield "get_output_tensor_by_name", lambda: pb_utils.get_output_tensor_by_name(new([tensor("a")]), "a").name()
    yield "get_output_tensor_by_name, another", lambda: pb_utils.get_output_tensor_by_name(new([tensor("a")]), "b")


def errors():
    new = pb_utils.TritonError
    yield "TritonError()", lambda: new()
    yield "TritonError(None)", lambda: new(None)
    yield "TritonError(1)", lambda: new(1)
    yield "TritonError('x', None)", lambda: new("x", None)
    yield "TritonError('x', 'y')", lambda: new("x", "y")
    yield "TritonError('x', 99)", lambda: new("x", 99).code()
    yield "TritonError('x')", lambda: [new("x").message(), new("x").code() == new.INTERNAL]
    yield "TritonError(message=, code=)", lambda: new(message="m", code=new.NOT_FOUND).code() == new.NOT_FOUND
    yield "TritonModelException('x')", lambda: str(pb_utils.TritonModelException("x"))
    yield "TritonModelException()", lambda: str(pb_utils.TritonModelException())


def requests():
    yield "InferenceRequest()", lambda: pb_utils.InferenceRequest()
    yield "no inputs", lambda: pb_utils.InferenceRequest(model_name="m", requested_output_names=[])
    yield "no model_name", lambda: pb_utils.InferenceRequest(inputs=[], requested_output_names=[])
    yield "no requested_output_names", lambda: pb_utils.InferenceRequest(model_name="m", inputs=[])
    for name, values in {
        "request_id": (None, 1, "text"),
        "correlation_id": (None, -1, 1.5, "text", 2**64, 2**64 - 1),
        "inputs": (None, [None], ["x"], tensor(), (tensor(),)),
        "requested_output_names": (None, [None], [1], "y", ("y",), []),
        "model_name": (None, 1, ""),
        "model_version": (None, "1", 1.5, 7, -1),
        "flags": (None, "1", -1, 3),
        "timeout": (None, "1", -1, 1.5, 10**12),
        "preferred_memory": (None, "cpu"),
        "trace": (None, "text"),
        "parameters": (None, {}, {"a": 1}, {"a": 1.5}, {"a": [1]}, {1: 2}, [1], '{"a": 1}'),
        "unknown": (1,),
    }.items():
        for value in values:
            shown = "a tensor" if isinstance(value, pb_utils.Tensor) else "tensors" if holds_tensors(value) else repr(value)
            yield f"{name}={shown}", lambda name=name, value=value: bool(request(**{name: value}))
    memory = pb_utils.PreferredMemory
    yield "preferred_memory", lambda: bool(request(preferred_memory=memory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)))
    yield "PreferredMemory()", lambda: memory()
    yield "PreferredMemory(None)", lambda: memory(None)
    yield "PreferredMemory(CPU)", lambda: bool(memory(pb_utils.TRITONSERVER_MEMORY_CPU))
    yield "request_id()", lambda: request(request_id="i").request_id()
    yield "correlation_id()", lambda: [request(correlation_id=value).correlation_id() for value in (0, 7, "c")]
    yield "flags()", lambda: request(flags=3).flags()
    yield "set_flags", lambda: (lambda one: [one.set_flags(2), one.flags()])(request())
    yield "set_flags(None)", lambda: request().set_flags(None)
    yield "timeout()", lambda: request(timeout=5).timeout()
    yield "parameters()", lambda: json.loads(request(parameters={"b": True, "a": 1, "s": "t"}).parameters())
    yield "parameters() of none", lambda: request().parameters()
    yield "requested_output_names()", lambda: sorted(request(requested_output_names=["b", "a"]).requested_output_names())
    yield "inputs()", lambda: [one.name() for one in request().inputs()]
    yield "trace()", lambda: request().trace().get_context()
    yield "model_name()", lambda: request().model_name()
    yield "exec('x')", lambda: request().exec("x")
    yield "exec(None)", lambda: request().exec(None)
    yield "get_input_tensor_by_name", lambda: pb_utils.get_input_tensor_by_name(request(), "x").name()
    yield "get_input_tensor_by_name, another", lambda: pb_utils.get_input_tensor_by_name(request(), "y")
    yield "get_input_tensor_by_name, None", lambda: pb_utils.get_input_tensor_by_name(request(), None)
    yield "get_input_tensor_by_name of None", lambda: type_of(pb_utils.get_input_tensor_by_name, None, "x")


def crashes():
    """Calls that end a stub of Triton, or all of tritonserver."""
    yield "get_response_sender of its own request", lambda: request().get_response_sender()
    yield "is_cancelled of its own request", lambda: request().is_cancelled()
    yield "from_dlpack('', array)", lambda: pb_utils.Tensor.from_dlpack("", ARRAY)
    yield "from_dlpack(None, array)", lambda: pb_utils.Tensor.from_dlpack(None, ARRAY)
    yield "from_dlpack of an array", lambda: pb_utils.Tensor.from_dlpack("x", ARRAY).as_numpy().tolist()
    yield "from_dlpack of a transposed array", lambda: pb_utils.Tensor.from_dlpack("x", np.array([[1, 2], [3, 4]]).T)
    yield "from_dlpack of every second", lambda: pb_utils.Tensor.from_dlpack("x", np.arange(4)[::2])
    yield "from_dlpack of complex", lambda: pb_utils.Tensor.from_dlpack("x", np.array([1j]))
    yield "from_dlpack of a numpy capsule", lambda: pb_utils.Tensor.from_dlpack("x", ARRAY.__dlpack__()).shape()
    capsule = tensor("t").to_dlpack()
    yield "from_dlpack of a capsule once", lambda: pb_utils.Tensor.from_dlpack("x", capsule).shape()
    yield "from_dlpack of a capsule twice", lambda: pb_utils.Tensor.from_dlpack("x", capsule).shape()


def holds_tensors(value):
    return isinstance(value, tuple) and value and isinstance(value[0], pb_utils.Tensor)


def type_of(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__


def logs():
    log = pb_utils.Logger
    yield "log()", lambda: log.log()
    yield "log(None)", lambda: log.log(None)
    yield "log(1)", lambda: log.log(1)
    yield "log('x', None)", lambda: log.log("x", None)
    yield "log('x', 1)", lambda: log.log("x", 1)
    yield "log('x', 'INFO')", lambda: log.log("x", "INFO")
    yield "log('x', INFO)", lambda: log.log("x", log.INFO)
    yield "log(message=, level=)", lambda: log.log(message="x", level=log.VERBOSE)
    for name in ("log_info", "log_warn", "log_error", "log_verbose"):
        yield f"{name}()", lambda name=name: getattr(log, name)()
        yield f"{name}(None)", lambda name=name: getattr(log, name)(None)
        yield f"{name}(1)", lambda name=name: getattr(log, name)(1)
        yield f"{name}(message=)", lambda name=name: getattr(log, name)(message="x")


def metrics():
    new = pb_utils.MetricFamily
    yield "MetricFamily()", lambda: new()
    yield "MetricFamily('n', 'd')", lambda: new("n", "d")
    yield "MetricFamily(None, 'd', COUNTER)", lambda: new(None, "d", new.COUNTER)
    yield "MetricFamily('n', None, COUNTER)", lambda: new("n", None, new.COUNTER)
    yield "MetricFamily('n', 'd', None)", lambda: new("n", "d", None)
    yield "MetricFamily('n', 'd', 7)", lambda: new("n", "d", 7)
    family = new("zoo_arguments", "d", new.GAUGE)
    yield "Metric()", lambda: type(family.Metric()).__name__
    yield "Metric(None)", lambda: type(family.Metric(None)).__name__
    yield "Metric([])", lambda: type(family.Metric([])).__name__
    metric = family.Metric(labels={"a": "b"})
    yield "increment()", lambda: metric.increment()
    yield "increment(None)", lambda: metric.increment(None)
    yield "increment('1')", lambda: metric.increment("1")
    yield "increment(1)", lambda: [metric.increment(1), metric.value()]
    yield "set(True)", lambda: [metric.set(True), metric.value()]
    yield "value(1)", lambda: metric.value(1)


def sender(arrived):
    sender = arrived.get_response_sender()
    yield "send(text)", lambda: sender.send("text")
    yield "send(tensor)", lambda: sender.send(tensor())
    yield "send(flags=None)", lambda: sender.send(flags=None)
    yield "send(flags='1')", lambda: sender.send(flags="1")
    yield "send(flags=-1)", lambda: sender.send(flags=-1)
    yield "send(flags=3)", lambda: sender.send(flags=3)
    yield "send()", lambda: sender.send()
    yield "send(None)", lambda: sender.send(None)
    yield "send(unknown=1)", lambda: sender.send(unknown=1)
    yield "set_release_flags(None)", lambda: arrived.set_release_flags(None)
    yield "set_release_flags(0)", lambda: arrived.set_release_flags(0)
    yield "set_release_flags(99)", lambda: arrived.set_release_flags(99)
    yield "set_release_flags(ALL)", lambda: arrived.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
    yield "is_cancelled(1)", lambda: arrived.is_cancelled(1)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
            lines = []
            for name, function in globals()[case](*([request] if case == "sender" else [])):
                try:
                    lines.append(f"{name}: {function()}")
                except TypeError:
                    lines.append(f"{name}: TypeError")
                except Exception as error:
                    lines.append(f"{name}: {type(error).__name__}: {error}")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array(lines, dtype=object))]))
        return responses
