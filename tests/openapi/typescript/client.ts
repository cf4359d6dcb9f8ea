// Runs a model by clients whose types openapi-typescript has generated: of the server, and of the model `digits`.
// Arguments: the address of the server, and the JSON of a request. `tsc --strict` checks it against the documents.

import createClient from "openapi-fetch";
import type { components as ModelParts, paths as ModelPaths } from "./model.js";
import type { components as ServerParts, paths as ServerPaths } from "./server.js";

declare const process: { argv: string[] };

const [baseUrl, text] = process.argv.slice(2) as [string, string];
const server = createClient<ServerPaths>({ baseUrl });
const model = createClient<ModelPaths>({ baseUrl });
const digits = { params: { path: { model: "digits" } } };

function check(name: string, isRight: boolean | undefined) {
  console.log(isRight ? "ok" : "WRONG", name);
}

// An answer is JSON, or binary if the request asks for it.
const json = <T>(data: T) => (typeof data === "string" ? undefined : (data as Exclude<T, string>));

const ready = await server.GET("/v2/health/ready");
check("ready", ready.response.status === 200);

const metadata = await server.GET("/v2/models/{model}", digits);
const input = metadata.data?.inputs[0];
check("metadata", input?.datatype === "FP32" && String(input.shape) === "-1,64");

const request: ServerParts["schemas"]["InferRequest"] = JSON.parse(text);
const answer = await server.POST("/v2/models/{model}/infer", { ...digits, body: request });
check("infer", String(json(answer.data)?.outputs[0]?.data?.[0]).endsWith(":seven"));

const missing = await server.GET("/v2/models/{model}", { params: { path: { model: "none" } } });
check("error", missing.response.status === 404 && missing.error?.error.includes("none"));

const body = JSON.parse(text) as ModelParts["schemas"]["ModelInferRequest"];
const [pixels] = body.inputs;
const inferred = await model.POST("/v2/models/digits/infer", { body: { inputs: body.inputs } });
check("infer of the model", json(inferred.data)?.outputs[0]?.data?.length === 10);

const generated = await model.POST("/v2/models/digits/generate", { body: { pixels: [pixels?.data as number[]] } });
const [row] = (generated.data?.probabilities ?? []) as number[][];
check("generate of the model", row?.indexOf(Math.max(...row)) === 7);

// @ts-expect-error The model's input has another datatype.
const wrong: ModelParts["schemas"]["ModelInferRequest"]["inputs"][0]["datatype"] = "INT32";
const refused = await model.POST("/v2/models/digits/infer", {
  body: { inputs: body.inputs.map((tensor) => ({ ...tensor, datatype: wrong })) },
});
check("another datatype", refused.response.status === 400 && typeof refused.error?.error === "string");
