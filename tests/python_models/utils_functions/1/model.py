"""The answers of the module's functions, line by line."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

CONFIG = {"name": "m", "max_batch_size": 4, "input": [], "output": [{"name": "o", "data_type": "TYPE_FP32", "dims": [2]}]}


def config(**more):
    return pb_utils.ModelConfig(json.dumps({**CONFIG, **more}))


def changed(config, change, *arguments):
    getattr(config, change)(*arguments)
    return json.dumps(config.as_dict(), sort_keys=True)


def tensor(name="i", data_type="TYPE_FP32", dims=(1,), **more):
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def types():
    names = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16 BYTES".split()
    yield from ((f"triton_string_to_numpy TYPE_{name}", lambda name=name: to_numpy(f"TYPE_{name}")) for name in names)
    yield "triton_string_to_numpy FP32", lambda: to_numpy("FP32")
    for number in range(16):
        yield f"triton_to_numpy_type {number}", lambda number=number: pb_utils.triton_to_numpy_type(number)
    for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 object S3 U3 complex64".split():
        yield f"numpy_to_triton_type {name}", lambda name=name: pb_utils.numpy_to_triton_type(np.dtype(name).type)
    yield "numpy_to_triton_type of a dtype", lambda: pb_utils.numpy_to_triton_type(np.dtype("float32"))


def to_numpy(name):
    return np.dtype(pb_utils.triton_string_to_numpy(name)).name


def strings():
    def serialized(*values, dtype=object):
        return pb_utils.serialize_byte_tensor(np.array(values, dtype=dtype))

    yield "serialize bytes", lambda: serialized(b"a", b"", b"\xff\x00")
    yield "serialize str", lambda: serialized("é", "x")
    yield "serialize others", lambda: serialized(1, None, 2.5)
    yield "serialize S", lambda: serialized(b"ab", b"c", dtype="S4")
    yield "serialize nothing", lambda: serialized()
    yield "serialize numbers", lambda: serialized(1, 2, dtype=np.int32)
    yield "serialize two dimensions", lambda: pb_utils.serialize_byte_tensor(np.array([[b"a", b"b"]], dtype=object).T)
    yield "deserialize", lambda: pb_utils.deserialize_bytes_tensor(b"\x01\x00\x00\x00a\x00\x00\x00\x00").tolist()
    yield "deserialize nothing", lambda: pb_utils.deserialize_bytes_tensor(b"").tolist()
    yield "deserialize what is cut off", lambda: type_of(pb_utils.deserialize_bytes_tensor, b"\x02\x00\x00\x00a")
    yield "deserialize a size that is cut off", lambda: type_of(pb_utils.deserialize_bytes_tensor, b"\x02\x00")


def type_of(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__


def by_name():
    yield "get_input_config_by_name", lambda: pb_utils.get_input_config_by_name({"input": [tensor()]}, "i")["dims"]
    yield "get_input_config_by_name, another", lambda: pb_utils.get_input_config_by_name({"input": [tensor()]}, "x")
    yield "get_output_config_by_name", lambda: pb_utils.get_output_config_by_name(CONFIG, "o")["data_type"]
    yield "get_output_config_by_name, no outputs", lambda: pb_utils.get_output_config_by_name({}, "o")
    decoupled = pb_utils.using_decoupled_model_transaction_policy
    yield "decoupled", lambda: decoupled({"model_transaction_policy": {"decoupled": True}})
    yield "not decoupled", lambda: decoupled({"model_transaction_policy": {"decoupled": False}})
    yield "no policy", lambda: decoupled({})


def configs():
    yield "as_dict", lambda: config().as_dict() == CONFIG
    yield "as_dict is the dict itself", lambda: (lambda one: one.as_dict() is one.as_dict())(config())
    yield "set_max_batch_size", lambda: changed(config(), "set_max_batch_size", 8)
    yield "set_max_batch_size, smaller", lambda: changed(config(), "set_max_batch_size", 2)
    yield "set_dynamic_batching", lambda: changed(config(), "set_dynamic_batching")
    yield "set_dynamic_batching, there", lambda: changed(config(dynamic_batching={"a": 1}), "set_dynamic_batching")
    yield "set_dynamic_batching, sequences", lambda: changed(config(sequence_batching={}), "set_dynamic_batching")
    yield "set_dynamic_batching, ensemble", lambda: changed(config(ensemble_scheduling={}), "set_dynamic_batching")
    for side in ("input", "output"):
        there = {side: [tensor()]}
        add = f"add_{side}"
        yield f"{add}", lambda add=add: changed(config(), add, tensor())
        yield f"{add}, the same", lambda add=add, there=there: changed(config(**there), add, tensor())
        yield f"{add}, datatype", lambda add=add, there=there: changed(config(**there), add, tensor(data_type="TYPE_INT8"))
        yield f"{add}, dims", lambda add=add, there=there: changed(config(**there), add, tensor(dims=(2,)))
        yield f"{add}, invalid before", lambda add=add, side=side: changed(
            config(**{side: [tensor(data_type="TYPE_INVALID", dims=())]}), add, tensor()
        )
        yield f"{add}, a wrong key", lambda add=add: changed(config(), add, tensor(extra=1))
        yield f"{add}, optional", lambda add=add: changed(config(), add, tensor(optional=True))
        for missing in ("name", "data_type", "dims"):
            without = {key: value for key, value in tensor().items() if key != missing}
            yield f"{add}, no {missing}", lambda add=add, without=without: changed(config(), add, without)
    yield "add_input, optional contradicts", lambda: changed(
        config(input=[tensor(optional=False)]), "add_input", tensor(optional=True)
    )
    policy = "set_model_transaction_policy"
    yield f"{policy}", lambda: changed(config(), policy, {"decoupled": True})
    yield f"{policy}, the same", lambda: changed(config(**{"model_transaction_policy": {"decoupled": True}}), policy, {"decoupled": True})
    yield f"{policy}, contradicts", lambda: changed(
        config(**{"model_transaction_policy": {"decoupled": True}}), policy, {"decoupled": False}
    )
    yield f"{policy}, a wrong key", lambda: changed(config(), policy, {"coupled": True})


def constants():
    for name in (
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
        "TRITONSERVER_REQUEST_RELEASE_ALL",
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    ):
        yield name, lambda name=name: getattr(pb_utils, name)
    yield "memory types differ", lambda: pb_utils.TRITONSERVER_MEMORY_GPU != pb_utils.TRITONSERVER_MEMORY_CPU
    yield "TRITON_STRING_TO_NUMPY", lambda: sorted(pb_utils.TRITON_STRING_TO_NUMPY)
    for name in "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split():
        yield f"TritonError.{name}", lambda name=name: int(getattr(pb_utils.TritonError, name))
    yield "modules", lambda: [hasattr(pb_utils, name) for name in ("np", "json", "struct")]
    yield "an exception", lambda: issubclass(pb_utils.TritonModelException, Exception)
    yield "TritonError is no exception", lambda: issubclass(pb_utils.TritonError, Exception)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
            lines = []
            for name, function in globals()[case]():
                try:
                    lines.append(f"{name}: {function()}")
                except Exception as error:
                    lines.append(f"{name}: {type(error).__name__}: {error}")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array(lines, dtype=object))]))
        return responses
