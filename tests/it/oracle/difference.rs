//! Intended differences between Deuteron and tritonserver 2.51: one row per decision.
//!
//! A row says which answers of Triton it is about and the answer that they become, which Deuteron must give to the
//! byte. A difference that is not in this table fails, and so does a row that no answer needs.

use crate::oracle::{
    compare::{Becomes, Difference, On},
    refusal, rewrite,
};

/// The table. Rows apply from the first to the last, each to the result of the one before.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        decision: "a client's mistake in the JSON is 400, as the protocol says; Triton says 500",
        on: On::Every(|_, answer| answer.starts_with("500 application/json\n{\"error\"")),
        becomes: Becomes::Replaced("500 application/json", "400 application/json"),
    },
    Difference {
        decision: "an error's body is JSON, and its type says so",
        on: On::Every(|_, answer| answer.contains(" text/plain\n{\"error\":")),
        becomes: Becomes::Replaced("text/plain", "application/json"),
    },
    Difference {
        decision: "a body in an unknown content encoding is 415, as RFC 9110 says; Triton says 501",
        on: On::Cases(&["framing: an unknown content encoding"]),
        becomes: Becomes::Replaced("501 ", "415 "),
    },
    Difference {
        decision: "the root of the port has links; Triton has nothing there",
        on: On::Cases(&["server: GET /"]),
        becomes: Becomes::Answer(
            "200 application/json\n\
             {\"server\":\"/v2\",\"docs\":\"/v2/docs\",\"openapi\":\"/v2/docs/openapi.json\"}",
        ),
    },
    Difference {
        decision: "the models that serve are listed, as KServe's servers do; Triton has nothing there",
        on: On::Cases(&["path: GET /v2/models"]),
        becomes: Becomes::Answer(
            "200 application/json\n\
             {\"models\":[\"addsub\",\"classify\",\"classify_int\",\"classify_nobatch\",\"identity_bf16\",\
             \"identity_bool\",\"identity_bytes\",\"identity_bytes_one\",\"identity_fp16\",\
             \"identity_fp32\",\"identity_fp64\",\"identity_int16\",\"identity_int32\",\"identity_int64\",\
             \"identity_int8\",\"identity_nobatch\",\"identity_raw\",\"identity_square\",\"identity_two\",\
             \"identity_uint16\",\"identity_uint32\",\"identity_uint64\",\"identity_uint8\",\"slow\"]}",
        ),
    },
    Difference {
        decision: "the repository index is read by GET too: it changes nothing",
        on: On::Cases(&["later: GET /v2/repository/index"]),
        becomes: Becomes::Answer(
            "200 application/json\n\
             [{\"name\":\"addsub\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"classify\",\
             \"version\":\"1\",\"state\":\"READY\"},{\"name\":\"classify_int\",\"version\":\"1\",\
             \"state\":\"READY\"},{\"name\":\"classify_nobatch\",\"version\":\"1\",\"state\":\"READY\"},{\
             \"name\":\"identity_bf16\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_bool\",\
             \"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_bytes\",\"version\":\"1\",\
             \"state\":\"READY\"},{\"name\":\"identity_bytes_one\",\"version\":\"1\",\"state\":\"READY\"},{\
             \"name\":\"identity_fp16\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_fp32\",\
             \"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_fp64\",\"version\":\"1\",\
             \"state\":\"READY\"},{\"name\":\"identity_int16\",\"version\":\"1\",\"state\":\"READY\"},{\
             \"name\":\"identity_int32\",\"version\":\"1\",\"state\":\"READY\"},{\
             \"name\":\"identity_int64\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_int8\",\
             \"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_nobatch\",\"version\":\"1\",\
             \"state\":\"READY\"},{\"name\":\"identity_raw\",\"version\":\"1\",\"state\":\"READY\"},{\
             \"name\":\"identity_square\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_two\",\
             \"version\":\"1\",\"state\":\"READY\"},{\"name\":\"identity_uint16\",\"version\":\"1\",\
             \"state\":\"READY\"},{\"name\":\"identity_uint32\",\"version\":\"1\",\"state\":\"READY\"},{\
             \"name\":\"identity_uint64\",\"version\":\"1\",\"state\":\"READY\"},{\
             \"name\":\"identity_uint8\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"slow\",\
             \"version\":\"1\",\"state\":\"READY\"}]",
        ),
    },
    Difference {
        decision: "liveness has the protocol's JSON body; Triton's is empty",
        on: On::Cases(&["health: GET /v2/health/live"]),
        becomes: Becomes::Answer("200 application/json\n{\"live\":true}"),
    },
    Difference {
        decision: "readiness has the protocol's JSON body; Triton's is empty",
        on: On::Cases(&["health: GET /v2/health/ready", "health: GET /v2/health/ready?verbose=1"]),
        becomes: Becomes::Answer("200 application/json\n{\"live\":true,\"ready\":true}"),
    },
    Difference {
        decision: "a model's readiness has the protocol's JSON body; Triton's is empty",
        on: On::Cases(&[
            "health: GET /v2/models/identity_fp32/ready",
            "health: GET /v2/models/identity_fp32/versions/1/ready",
        ]),
        becomes: Becomes::Answer("200 application/json\n{\"name\":\"identity_fp32\",\"ready\":true}"),
    },
    Difference {
        decision: "readiness of an unknown model or version is 404, as later Tritons say; 2.51 calls it not ready",
        on: On::Cases(&["health: GET /v2/models/nope/ready", "health: GET /v2/models/nope/versions/1/ready"]),
        becomes: Becomes::Answer(
            "404 application/json\n{\"error\":\"Request for unknown model: 'nope' is not found\"}",
        ),
    },
    Difference {
        decision: "readiness of an unknown version is 404 and names it",
        on: On::Cases(&["health: GET /v2/models/identity_fp32/versions/2/ready"]),
        becomes: Becomes::Answer(
            "404 application/json\n{\"error\":\"Request for unknown model: 'identity_fp32' version 2 is not found\"}",
        ),
    },
    Difference {
        decision: "version 0 is a version that is not there",
        on: On::Cases(&["health: GET /v2/models/identity_fp32/versions/0/ready"]),
        becomes: Becomes::Answer(
            "404 application/json\n{\"error\":\"Request for unknown model: 'identity_fp32' version 0 is not found\"}",
        ),
    },
    Difference {
        decision: "the doubles of a request are read exactly; Triton misses some by their last digit",
        on: On::Cases(&["float: FP64 small", "float: FP64 denormal", "float: FP64 more digits than fit"]),
        becomes: Becomes::Rewritten(rewrite::exact_doubles),
    },
    Difference {
        decision: "floats are the shortest text that reads back to the same value of their datatype",
        on: On::Every(|_, answer| answer.starts_with("200 ")),
        becomes: Becomes::Rewritten(rewrite::shortest_floats),
    },
    Difference {
        decision: "the value of a class is the shortest text that reads back; Triton's has six decimals",
        on: On::Every(|case, answer| case.name.starts_with("classification: ") && answer.contains("\"data\":[")),
        becomes: Becomes::Rewritten(rewrite::shortest_classes),
    },
    Difference {
        decision: "the value of a class is the shortest text over gRPC too",
        on: On::Every(|case, _| case.name.starts_with("grpc classification: ")),
        becomes: Becomes::Rewritten(rewrite::shortest_raw_classes),
    },
    Difference {
        decision: "the value of a class is the shortest text as binary data too",
        on: On::Every(|case, _| case.name.starts_with("classification: ") && case.name.ends_with("as binary data")),
        becomes: Becomes::Rewritten(rewrite::shortest_binary_classes),
    },
    Difference {
        decision: "the value of a class beyond six decimals is not lost in its text",
        on: On::Cases(&["classification: fractions"]),
        becomes: Becomes::Replaced("\"0:3:pickle\"", "\"1e-9:3:pickle\""),
    },
    Difference {
        decision: "binary_data_output is the default of the listed outputs too, as the protocol says",
        on: On::Cases(&["mixed: all outputs binary, two listed"]),
        becomes: Becomes::Answer(
            "200 application/octet-stream\n\
             {\"model_name\":\"identity_two\",\"model_version\":\"1\",\"outputs\":[\
             {\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}},\
             {\"name\":\"OUTPUT1\",\"datatype\":\"INT32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}}]}\n\
             binary 8: \\x00\\x00\\xe0@\\x07\\x00\\x00\\x00",
        ),
    },
    Difference {
        decision: "binary_data_output is the default of an output that does not say otherwise, as the protocol says",
        on: On::Cases(&["mixed: all outputs binary but one"]),
        becomes: Becomes::Answer(
            "200 application/octet-stream\n\
             {\"model_name\":\"identity_two\",\"model_version\":\"1\",\"outputs\":[\
             {\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,1],\"data\":[7.0]},\
             {\"name\":\"OUTPUT1\",\"datatype\":\"INT32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}}]}\n\
             binary 4: \\x07\\x00\\x00\\x00",
        ),
    },
    Difference {
        decision: "an output asked for twice is refused, as later Tritons do; 2.51 answers it once",
        on: On::Cases(&["output: [{\"name\":\"OUTPUT0\"},{\"name\":\"OUTPUT0\"}]"]),
        becomes: Becomes::Answer(
            "400 application/json\n\
             {\"error\":\"[request id: <id_unknown>] output 'OUTPUT0' already exists in request\"}",
        ),
    },
    Difference {
        decision: "an output asked for twice is refused over gRPC too",
        on: On::Cases(&["grpc error: an output twice"]),
        becomes: Becomes::Answer(
            "InvalidArgument: [request id: <id_unknown>] output 'OUTPUT0' already exists in request",
        ),
    },
    Difference {
        decision: "a list of names without names is `[]`; Triton 2.51 writes `]`",
        on: On::Every(|_, answer| answer.contains("missing required input(s) ]")),
        becomes: Becomes::Replaced("missing required input(s) ]", "missing required input(s) []"),
    },
    Difference {
        decision: "a configuration shows where the model runs",
        on: On::Every(|_, answer| answer.contains("\"model.py\"")),
        becomes: Becomes::Rewritten(rewrite::with_placement),
    },
    Difference {
        decision: "the models are served by the ONNX engine, the oracle's by Python",
        on: On::Every(|_, answer| is_of_python(answer) && answer.contains("addsub")),
        becomes: Becomes::Rewritten(rewrite::as_onnx),
    },
    Difference {
        decision: "the models are served by the built-in identity, the oracle's by Python",
        on: On::Every(|_, answer| is_of_python(answer)),
        becomes: Becomes::Rewritten(rewrite::as_identity),
    },
    Difference {
        decision: "the server says its own name, its version and the extensions it has",
        on: On::Cases(&["server: GET /v2", "server: GET /v2?x=1"]),
        becomes: Becomes::Answer(concat!(
            "200 application/json\n{\"name\":\"deuteron\",\"version\":\"",
            env!("CARGO_PKG_VERSION"),
            "\",\"extensions\":[\"classification\",\"sequence\",\"sequence(string_id)\",\"model_repository\",\"model_repository(unload_dependents)\",\"schedule_policy\",\"model_configuration\",\"binary_tensor_data\",\"parameters\",\"statistics\",\"trace\",\"logging\"]}"
        )),
    },
    Difference {
        decision: "the server says its own name, its version and the extensions it has over gRPC too",
        on: On::Cases(&["grpc metadata: of the server"]),
        becomes: Becomes::Answer(concat!(
            "OK\n1: \"deuteron\"\n2: \"",
            env!("CARGO_PKG_VERSION"),
            "\"\n3: \"classification\"\n3: \"sequence\"\n3: \"sequence(string_id)\"\n3: \"model_repository\"\n3: \"model_repository(unload_dependents)\"\n3: \"schedule_policy\"\n3: \"model_configuration\"\n3: \"binary_tensor_data\"\n3: \"parameters\"\n3: \"statistics\"\n3: \"trace\"\n3: \"logging\""
        )),
    },
    Difference {
        decision: "what is no HTTP is refused; Triton hangs up",
        on: On::Cases(&["path: GET /v2/models/identity fp32"]),
        becomes: Becomes::Answer("400 application/json\n{\"error\":\"malformed request line\"}"),
    },
    Difference {
        decision: "HEAD is answered as GET is, without the body (RFC 9110 §9.3.2): probes send it",
        on: On::Cases(&["verb: HEAD /v2/health/live"]),
        becomes: Becomes::Answer("200 application/json"),
    },
    Difference {
        decision: "a NUL is no end of a JSON document: what stands behind the document is refused",
        on: On::Cases(&["syntax: a NUL behind"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"failed to parse the request JSON buffer: The document root must not be followed by other values. at 75\"}",
        ),
    },
    Difference {
        decision: "a NUL in the binary section is no end of the JSON that the header length cuts too late",
        on: On::Cases(&["header length: one too large", "header length: all of the body", "header length: missing"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"failed to parse the request JSON buffer: The document root must not be followed by other values. at 98\"}",
        ),
    },
    Difference {
        decision: "nothing is cut: a NUL inside an id comes back with what is behind it",
        on: On::Cases(&["id: with a NUL inside"]),
        becomes: Becomes::Replaced("\"id\":\"a\"", "\"id\":\"a\\\\u0000b\""),
    },
    Difference {
        decision: "JSON with half a surrogate pair is no JSON",
        on: On::Cases(&["text: a lone low surrogate"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"failed to parse the request JSON buffer: The surrogate pair in string is invalid. at 70\"}",
        ),
    },
    Difference {
        decision: "JSON that is no UTF-8 is no JSON",
        on: On::Cases(&["text: bytes that are no UTF-8"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"failed to parse the request JSON buffer: Invalid encoding in string. at 71\"}",
        ),
    },
    Difference {
        decision: "an answer is JSON: elements that are no UTF-8 go out as binary data alone",
        on: On::Cases(&["binary: BYTES in, JSON out", "bytes: no UTF-8, JSON out"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"element 0 of output 'OUTPUT0' is not UTF-8, which JSON requires. Please use the binary data format for output\"}",
        ),
    },
    Difference {
        decision: "a number that its datatype cannot hold is refused by name; Triton wraps most of them",
        on: On::Cases(&[
            "integer: INT8 out of its range",
            "integer: INT16 out of its range",
            "integer: INT32 out of its range",
            "integer: INT64 out of its range",
            "integer: UINT8 out of its range",
            "integer: UINT16 out of its range",
            "integer: UINT32 out of its range",
            "integer: UINT64 out of its range",
            "integer: INT64 given -9223372036854775809",
            "integer: UINT8 given -1",
            "integer: UINT32 given -1",
            "integer: UINT64 given -1",
            "integer: INT32 given 1.0",
            "integer: INT32 given 1.5",
            "integer: INT32 given 1e2",
            "integer: INT32 given 100000000000000000000000",
            "integer: UINT16 given 1.0",
            "integer: INT64 given 1e3",
            "float: FP32 from a double beyond its range",
        ]),
        becomes: Becomes::Asked(refusal::number),
    },
    Difference {
        decision: "a datatype of another program is refused with the name that was meant",
        on: On::Cases(&[
            "field: \"name\":\"INPUT0\",\"datatype\":\"STRING\",\"shape\":[1,1],\"data\":[\"1\"]",
            "field: \"name\":\"INPUT0\",\"datatype\":\"fp32\",\"shape\":[1,1],\"data\":[1]",
            "field: \"name\":\"INPUT0\",\"datatype\":\"FLOAT\",\"shape\":[1,1],\"data\":[1]",
            "field: \"name\":\"INPUT0\",\"datatype\":\"TYPE_FP32\",\"shape\":[1,1],\"data\":[1]",
        ]),
        becomes: Becomes::Asked(refusal::datatype),
    },
    Difference {
        decision: "a number that its datatype cannot hold is refused over gRPC too",
        on: On::Cases(&["grpc typed: INT8 out of its range"]),
        becomes: Becomes::Answer(
            "InvalidArgument: element 0 of input 'INPUT0' is 300, which is out of the range of INT8",
        ),
    },
    Difference {
        decision: "a number that its datatype cannot hold is refused over gRPC too, unsigned or not",
        on: On::Cases(&["grpc typed: UINT16 out of its range"]),
        becomes: Becomes::Answer(
            "InvalidArgument: element 0 of input 'INPUT0' is 65536, which is out of the range of UINT16",
        ),
    },
    Difference {
        decision: "of two faulty inputs the first of the model's is told; Triton's choice depends on a hash",
        on: On::Cases(&["several: too narrow"]),
        becomes: Becomes::Replaced("input 'INPUT1'", "input 'INPUT0'"),
    },
    Difference {
        decision: "inputs are held to the rows of the model's first; Triton's choice depends on a hash",
        on: On::Cases(&[
            "inputs: identity_two [{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[2,1],\"data\":[1,2]},{\"name\":\"INPUT1\",\"datatype\":\"INT32\",\"shape\":[1,1],\"data\":[1]}]",
            "grpc error: rows that differ",
        ]),
        becomes: Becomes::Replaced("input 'INPUT0' batch size", "input 'INPUT1' batch size"),
    },
    Difference {
        decision: "inputs are listed as the request has them; Triton's order depends on a hash",
        on: On::Cases(&[
            "inputs: identity_fp32 [{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[1,1],\"data\":[1]},{\"name\":\"INPUT1\",\"datatype\":\"FP32\",\"shape\":[1,1],\"data\":[1]}]",
            "grpc error: an input too many",
        ]),
        becomes: Becomes::Replaced("['INPUT1','INPUT0']", "['INPUT0','INPUT1']"),
    },
    Difference {
        decision: "inputs are listed as the request has them, three of them too",
        on: On::Cases(&[
            "inputs: identity_two [{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[1,1],\"data\":[1]},{\"name\":\"INPUT1\",\"datatype\":\"INT32\",\"shape\":[1,1],\"data\":[1]},{\"name\":\"X\",\"datatype\":\"INT32\",\"shape\":[1,1],\"data\":[1]}]",
        ]),
        becomes: Becomes::Replaced("['X','INPUT1','INPUT0']", "['INPUT0','INPUT1','X']"),
    },
    Difference {
        decision: "an optional member that is null counts as absent; Triton refuses some of them",
        on: On::Cases(&["id: null", "parameter: null"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"identity_fp32\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,2],\"data\":[1.0,2.0]}]}",
        ),
    },
    Difference {
        decision: "data that are null are no data",
        on: On::Cases(&["layout: null for a list"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But no field is set\"}",
        ),
    },
    Difference {
        decision: "outputs that are null are all outputs",
        on: On::Cases(&["output: null"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"identity_two\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,1],\"data\":[1.0]},{\"name\":\"OUTPUT1\",\"datatype\":\"INT32\",\"shape\":[1,1],\"data\":[2]}]}",
        ),
    },
    Difference {
        decision: "a count of classes that is null is none",
        on: On::Cases(&["classification: count null"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"classify\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,4],\"data\":[1.125,3.5,0.5,2.25]}]}",
        ),
    },
    Difference {
        decision: "a batch of no rows is told as that; Triton says that its size is not that of one row",
        on: On::Cases(&["shape: identity_fp32 [0,1]"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"[request id: <id_unknown>] inference request batch-size must be >= 1 for 'identity_fp32'\"}",
        ),
    },
    Difference {
        decision: "a batch of no rows is told as that for any model",
        on: On::Cases(&["shape: identity_raw [0,4]"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"[request id: <id_unknown>] inference request batch-size must be >= 1 for 'identity_raw'\"}",
        ),
    },
    Difference {
        decision: "a batch of no rows is told as that over gRPC too",
        on: On::Cases(&["grpc error: no rows"]),
        becomes: Becomes::Answer(
            "InvalidArgument: [request id: <id_unknown>] inference request batch-size must be >= 1 for 'identity_fp32'",
        ),
    },
    Difference {
        decision: "a dimension that no tensor can have is refused as that",
        on: On::Cases(&["shape: a dimension of 2^63"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"Unable to parse 'shape': dimension 9223372036854775808 of input 'INPUT0' exceeds maximum size of 9223372036854775807\"}",
        ),
    },
    Difference {
        decision: "elements beyond 2^63 are refused as that; Triton's count wraps to 0",
        on: On::Cases(&["shape: a product of 2^64"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"invalid shape for input 'INPUT0': shape [4294967296,4294967296] causes total element count to exceed maximum size of 9223372036854775807\"}",
        ),
    },
    Difference {
        decision: "elements of 2^63 are refused as that; Triton's count wraps below 0",
        on: On::Cases(&["shape: a product of 2^63"]),
        becomes: Becomes::Answer(
            "400 application/json\n{\"error\":\"invalid shape for input 'INPUT0': shape [2147483648,4294967296] causes total element count to exceed maximum size of 9223372036854775807\"}",
        ),
    },
    Difference {
        decision: "a size that no tensor can have is refused as that over gRPC",
        on: On::Cases(&["grpc error: bytes beyond 2^63"]),
        becomes: Becomes::Answer(
            "InvalidArgument: [request id: <id_unknown>] invalid shape for input 'INPUT0': shape [1,4611686018427387904] causes total element count to exceed maximum size of 9223372036854775807",
        ),
    },
    Difference {
        decision: "more rows than 2^32 are too many rows; Triton counts them modulo 2^32",
        on: On::Cases(&["grpc error: a product of 2^64"]),
        becomes: Becomes::Answer(
            "InvalidArgument: [request id: <id_unknown>] inference request batch-size must be <= 8 for 'identity_fp32'",
        ),
    },
    Difference {
        decision: "any negative dimension is unspecified, not only -1",
        on: On::Cases(&["grpc error: a dimension of -2"]),
        becomes: Becomes::Answer(
            "InvalidArgument: [request id: <id_unknown>] All input dimensions should be specified for input 'INPUT0' for model 'identity_fp32', got [1,-2]",
        ),
    },
    Difference {
        decision: "too few elements are refused in the words of later Tritons",
        on: On::Cases(&["size: an element too few", "size: no elements for four", "size: a boolean too few"]),
        becomes: Becomes::Replaced(
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
            "Failed to parse 'data' field: shape does not match true shape",
        ),
    },
    Difference {
        decision: "client shared memory is off unless a flag allows it, as in later Tritons",
        on: On::Cases(&[
            "source: \"parameters\":{\"shared_memory_region\":\"r\",\"shared_memory_byte_size\":4}",
            "source: \"parameters\":{\"shared_memory_region\":\"r\"}",
            "source: \"parameters\":{\"shared_memory_region\":1}",
        ]),
        becomes: Becomes::Answer(
            "501 application/json\n{\"error\":\"Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.\"}",
        ),
    },
    Difference {
        decision: "a name in a path is decoded (RFC 3986 §2.1), since clients encode it: tritonclient does",
        on: On::Cases(&["path: GET /v2/models/identity%5Ffp32"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"name\":\"identity_fp32\",\"versions\":[\"1\"],\"platform\":\"identity\",\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"FP32\",\"shape\":[-1,-1]}],\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[-1,-1]}]}",
        ),
    },
    Difference {
        decision: "a name in a path is decoded for inferences too",
        on: On::Cases(&["path: POST /v2/models/identity%5Ffp32/infer"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"identity_fp32\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[1,2],\"data\":[1.0,2.0]}]}",
        ),
    },
    Difference {
        decision: "a header length is a number of 32 bits and nothing else, as in later Tritons",
        on: On::Cases(&[
            "header length: with a plus",
            "header length: with text behind",
            "header length: 2^31",
            "header length: 2^64",
            "header length: text",
            "header length: a fraction",
            "header length: empty",
            "header length: hexadecimal",
        ]),
        becomes: Becomes::Asked(refusal::header_length),
    },
    Difference {
        decision: "a count of classes beyond 32 bits is all of them; Triton takes it modulo 2^32",
        on: On::Cases(&["classification: count 4294967296"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"classify\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"BYTES\",\"shape\":[1,4],\"data\":[\"3.5:1:banana\",\"2.25:3:pickle\",\"1.125:0:apple\",\"0.5:2:cherry\"]}]}",
        ),
    },
    Difference {
        decision: "classes can be told of FP16: it is a number",
        on: On::Cases(&["classification: FP16"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"identity_fp16\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"BYTES\",\"shape\":[1,1],\"data\":[\"2:1\"]}]}",
        ),
    },
    Difference {
        decision: "classes can be told of BF16: it is a number",
        on: On::Cases(&["classification: BF16"]),
        becomes: Becomes::Answer(
            "200 application/json\n{\"model_name\":\"identity_bf16\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"BYTES\",\"shape\":[1,1],\"data\":[\"2:1\"]}]}",
        ),
    },
    Difference {
        decision: "classes can be told of FP16 over gRPC too",
        on: On::Cases(&["grpc classification: FP16"]),
        becomes: Becomes::Answer(
            "OK\n1: \"identity_fp16\"\n2: \"1\"\n5 {\n  1: \"OUTPUT0\"\n  2: \"BYTES\"\n  3: bytes \"\\x01\\x01\"\n}\n6: bytes \"\\x03\\x00\\x00\\x002:1\"",
        ),
    },
    Difference {
        decision: "a version is digits alone: `1x` is none",
        on: On::Cases(&[
            "grpc metadata: of `identity_fp32` version `1x`",
            "grpc metadata: config of `identity_fp32` version `1x`",
        ]),
        becomes: Becomes::Answer(
            "InvalidArgument: failed to get model version from specified version string '1x' (details: stol), version should be an integral value > 0",
        ),
    },
    Difference {
        decision: "a version is digits alone: ` 1` is none",
        on: On::Cases(&[
            "grpc metadata: of `identity_fp32` version ` 1`",
            "grpc metadata: config of `identity_fp32` version ` 1`",
        ]),
        becomes: Becomes::Answer(
            "InvalidArgument: failed to get model version from specified version string ' 1' (details: stol), version should be an integral value > 0",
        ),
    },
    Difference {
        decision: "a field of another kind than the protocol gives it is refused; Triton skips it",
        on: On::Cases(&["grpc method: a field of the wrong kind"]),
        becomes: Becomes::Answer("Internal: Unable to parse request"),
    },
];

/// Returns true if an answer shows a property of a model that only the Python backend of the oracle gives it.
fn is_of_python(answer: &str) -> bool {
    answer.contains(":\"python\"") || answer.contains(": \"python\"")
}
