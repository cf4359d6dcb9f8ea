// A client of the Open Inference Protocol in JavaScript, without packages: tensors as binary data over HTTP. It also
// runs in browsers, where page and server have one origin (put both behind one proxy).

const LENGTH = "Inference-Header-Content-Length";

// The array of each datatype. BYTES become texts, and FP16 and BF16 their bits in 16.
const ARRAYS = {
  BOOL: Uint8Array, INT8: Int8Array, UINT8: Uint8Array, INT16: Int16Array, UINT16: Uint16Array, INT32: Int32Array,
  UINT32: Uint32Array, INT64: BigInt64Array, UINT64: BigUint64Array, FP32: Float32Array, FP64: Float64Array,
};

export class Refusal extends Error {
  constructor(status, text) {
    super(`${status}: ${text}`);
    this.status = status;
  }
}

export class Client {
  constructor(url, { timeout = 10_000, headers = {} } = {}) {
    Object.assign(this, { url, timeout, headers }); // a key goes into headers: { Authorization: "Bearer …" }
  }

  // Runs a model. An input is { name, datatype, shape, data } with a typed array, an output { name, parameters }.
  // Returns the outputs by name, with their data. When the signal aborts, the connection closes, and the server drops
  // the request if it still waits. fetch keeps connections open by itself.
  async infer(model, inputs, outputs, signal = AbortSignal.timeout(this.timeout)) {
    const sized = inputs.map(({ data, ...input }) => ({ ...input, parameters: { binary_data_size: data.byteLength } }));
    const head = new TextEncoder().encode(JSON.stringify({ inputs: sized, outputs }));
    const body = await new Blob([head, ...inputs.map(({ data }) => data)]).arrayBuffer();
    // Node asks for gzip, which rarely pays for tensors. Browsers ask for it, whatever is said here.
    const headers = { "Accept-Encoding": "identity", ...this.headers, [LENGTH]: String(head.length) };
    for (let attempt = 1; ; attempt++) {
      // If this throws, the model may have run: ask again only where that does no harm.
      const reply = await fetch(`${this.url}/v2/models/${model}/infer`, { method: "POST", headers, body, signal });
      const answer = await reply.arrayBuffer(); // always to the end, or the connection is not used again
      if (reply.ok) return decode(answer, Number(reply.headers.get(LENGTH) ?? answer.byteLength));
      // 503 (busy) and 429 (over the rate of a key) say when to come again. Other errors are final.
      const wait = reply.headers.get("Retry-After");
      if (wait === null || attempt === 3) throw new Refusal(reply.status, errorText(answer));
      await new Promise((wake) => setTimeout(wake, 1000 * Number(wait)));
    }
  }
}

function errorText(answer) {
  const text = new TextDecoder().decode(answer);
  try {
    return JSON.parse(text).error;
  } catch {
    return text; // of a proxy
  }
}

function decode(answer, size) {
  const { outputs } = JSON.parse(new TextDecoder().decode(answer.slice(0, size)));
  const named = {};
  for (const { name, datatype, shape, parameters, data } of outputs) {
    const end = size + (parameters?.binary_data_size ?? 0);
    named[name] = { datatype, shape, data: data ?? elements(datatype, answer.slice(size, end)) };
    size = end;
  }
  return named;
}

function elements(datatype, bytes) {
  if (datatype !== "BYTES") return new (ARRAYS[datatype] ?? Uint16Array)(bytes); // little-endian, as all machines are
  const [texts, view] = [[], new DataView(bytes)];
  for (let at = 0; at < bytes.byteLength; ) {
    const size = view.getUint32(at, true);
    texts.push(new TextDecoder().decode(new Uint8Array(bytes, at + 4, size)));
    at += 4 + size;
  }
  return texts;
}

// node client.mjs HOST:PORT
if (typeof process !== "undefined" && process.argv[1]?.endsWith("client.mjs")) {
  const { readFile } = await import("node:fs/promises");
  const raw = await readFile(new URL("../../models/digits/raw.bin", import.meta.url));
  const pixels = new Float32Array(raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length));
  const client = new Client(`http://${process.argv[2] ?? "localhost:8000"}`);
  const inputs = [{ name: "pixels", datatype: "FP32", shape: [1, 64], data: pixels }];

  const wanted = { name: "probabilities", parameters: { binary_data: true } };
  const best = { ...wanted, parameters: { binary_data: true, classification: 3 } };
  const [score, , label] = (await client.infer("digits", inputs, [best])).probabilities.data[0].split(":");
  console.log(label, score);

  const { data } = (await client.infer("digits", inputs, [wanted])).probabilities;
  console.log(`probabilities: ${data.length} values, the largest is ${data.indexOf(Math.max(...data))}`);

  await client.infer("nope", inputs, [wanted]).catch((error) => console.log(error.message));
}
