// Asks the server that the page came from.

const PATIENCE = 5000; // a server that does not answer within this time is shown as not reachable

export const access = { key: '' };
// Parts that are not asked for again until another key is there: the server counts each refusal. True if a key would open
// the part.
export const refused = new Map();

export async function ask(path, { isPatient, headers = {}, ...options } = {}) {
  const authorization = access.key ? { Authorization: `Bearer ${access.key}` } : {};
  const signal = isPatient ? undefined : AbortSignal.timeout(PATIENCE);
  const reply = await fetch(path, { ...options, headers: { ...headers, ...authorization }, signal, cache: 'no-store' });
  if (reply.ok) return reply;
  let why = `${reply.status} ${reply.statusText}`;
  try { why = (await reply.json()).error || why; } catch { /* no JSON: the status says it */ }
  const error = new Error(why);
  error.status = reply.status;
  throw error;
}

export const askText = async (path, options) => (await ask(path, options)).text();
export const askJson = async (path, options) => parseJson(await askText(path, options));

// Returns why the server is not ready; empty if it is.
export async function askReady() {
  const reply = await fetch('/v2/health/ready', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) });
  return reply.ok ? '' : (await reply.text()) || 'the server does not say why';
}

// JSON with NaN and Infinity, which models answer, and with whole numbers that a number of JavaScript does not hold: these
// come as text. Strings are passed over run by run: one step for each character is too much of a stack for long ones.
export function parseJson(text) {
  return JSON.parse(text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g,
    (token) => (token.startsWith('"') ? token : `"${token}"`)));
}

// A server that does not answer has no status.
export const tell = (error) => (error.status ? error.message : 'The server is not reachable. Trying again …');

export const modelPath = ({ name, version }) =>
  `/v2/models/${encodeURIComponent(name)}${version ? `/versions/${encodeURIComponent(version)}` : ''}`;
