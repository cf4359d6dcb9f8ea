// The console of a Deuteron server: reads /metrics, the index and the log every second, and asks models by their
// metadata. What comes from the server goes into the page as text alone: names of models and lines of the log are hostile.

const PERIOD = 1000;
const WINDOW = 10; // seconds that rates and percentiles are of
const MINUTE = 60; // seconds that a sparkline shows
const VALUES_MAX = 1000000; // numbers that the buttons fill one input with
const SHOWN_MAX = 10000; // numbers that a text field shows; more are kept beside it
const ARGUMENT_MAX = 100 * 1024; // bytes of a body in the line of curl: Linux takes 128 KiB in an argument
const PATIENCE = 5000; // a server that does not answer for so long is shown as such
const SVG = 'http://www.w3.org/2000/svg';

const byId = (id) => document.getElementById(id);
let apiKey = '';
const refused = new Map(); // what is not asked again until another key is there, and whether a key would open it
let server = { http_port: 8000, http_tls: false, asks_models: true };
let looks = []; // the scrapes of the last minute, the newest last
let index = [];
let wanted = null; // the model that was chosen last
let chosen = null; // the same once all is known of it: {name, version, metadata, config}
let nextLine = 0;
let isPaused = false;

// ---- asking

async function ask(path, options = {}) {
  const headers = apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
  const signal = options.isPatient ? undefined : AbortSignal.timeout(PATIENCE);
  const reply = await fetch(path, { ...options, headers, signal, cache: 'no-store' });
  if (reply.ok) return reply;
  let why = `${reply.status} ${reply.statusText}`;
  try { why = (await reply.json()).error || why; } catch { /* no JSON: the status says it */ }
  const error = new Error(why);
  error.status = reply.status;
  throw error;
}

const askJson = async (path, options) => parseJson(await (await ask(path, options)).text());

// JSON with NaN and Infinity, which models answer, and with whole numbers that a number of JavaScript does not hold: these
// come as text. Strings are passed over run by run: one step for each character is too much of a stack for long ones.
export function parseJson(text) {
  return JSON.parse(text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g,
    (token) => (token.startsWith('"') ? token : `"${token}"`)));
}

// What a person is told: a server that says nothing has no status.
const tell = (error) => (error.status ? error.message : 'The server is not reachable. Trying again …');

// Asks for a key where one is missing. Each refusal is counted by the server: `part` is not asked for again before another
// key is there.
function handle(error, part) {
  if (error.status !== 401 && error.status !== 403) return;
  refused.set(part, true);
  byId('key-form').hidden = false;
  byId('key-why').textContent = error.message;
}

// ---- metrics

// Prometheus's text: families by name, each a list of {labels, value}.
export function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split('\n')) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    }
    if (!families.has(found[1])) families.set(found[1], []);
    families.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return families;
}

const matches = (row, wanted) => Object.entries(wanted).every(([name, value]) => row.labels[name] === value);
const rows = (look, name, wanted = {}) => (look.families.get(name) || []).filter((row) => matches(row, wanted));
const sum = (look, name, wanted) => rows(look, name, wanted).reduce((total, row) => total + row.value, 0);

// The newest look, and one of so many seconds before.
function pair(seconds) {
  const last = looks.at(-1);
  const first = looks.findLast((look) => look.at <= last.at - seconds * 1000) || looks[0];
  return { first, last, seconds: (last.at - first.at) / 1000 };
}

// A second's worth of a counter; null before there are two looks.
function rate(name, wanted) {
  const { first, last, seconds } = pair(WINDOW);
  return seconds > 0 ? Math.max(0, sum(last, name, wanted) - sum(first, name, wanted)) / seconds : null;
}

// How much each bucket of a histogram grew: [[upper bound, count], …], the bounds ascending.
function growth(name, wanted, seconds) {
  const { first, last } = pair(seconds);
  const before = new Map(rows(first, `${name}_bucket`, wanted).map((row) => [row.labels.le, row.value]));
  const all = rows(last, `${name}_bucket`, wanted)
    .map((row) => [row.labels.le === '+Inf' ? Infinity : Number(row.labels.le), Math.max(0, row.value - (before.get(row.labels.le) || 0))])
    .sort((a, b) => a[0] - b[0]);
  return all.map(([bound, count], i) => [bound, Math.max(0, count - (i ? all[i - 1][1] : 0))]);
}

// A percentile by linear interpolation in its bucket, as Prometheus has it.
export function percentile(buckets, share) {
  const total = buckets.reduce((all, [, count]) => all + count, 0);
  if (!total) return null;
  let left = share * total;
  let low = 0;
  for (const [bound, count] of buckets) {
    if (left <= count && count) return bound === Infinity ? low : low + (bound - low) * (left / count);
    left -= count;
    low = bound;
  }
  return low;
}

// ---- text

const number = (value) => (value === null || Number.isNaN(value) ? '–'
  : value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en') : value >= 10 ? value.toFixed(1) : value.toFixed(2));
const micros = (value) => (value === null ? '–' : value < 1000 ? `${Math.round(value)} µs`
  : value < 1e6 ? `${(value / 1e3).toFixed(value < 1e4 ? 1 : 0)} ms` : `${(value / 1e6).toFixed(1)} s`);
const bytes = (value) => (value < 1e9 ? `${Math.round(value / 1e6)} MB` : `${(value / 1e9).toFixed(1)} GB`);

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== 'list') made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function drawing(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---- the overview

function showTotals() {
  const last = looks.at(-1);
  const refused = rows(last, 'deuteron_requests_refused_total').filter((row) => row.value > 0)
    .map((row) => `${row.labels.reason} ${number(row.value)}`).join(', ');
  figures(byId('totals'), [
    ['Requests/s', number(rate('deuteron_requests_succeeded_total')), ''],
    ['Refused/s', number(rate('deuteron_requests_refused_total')), ''],
    ['In flight', number(sum(last, 'deuteron_requests_in_flight')), ''],
    ['Answered since start', number(sum(last, 'deuteron_requests_succeeded_total')), ''],
    ['Refused since start', number(sum(last, 'deuteron_requests_refused_total')), refused],
  ]);
  const bound = (name, used, most, text) => [name, `${text(used)} of ${text(most)}`, '', most > 0 ? used / most : 0];
  const fullest = rows(last, 'deuteron_queue_requests_max').map((row) => {
    const { model, version } = row.labels;
    return [sum(last, 'nv_inference_pending_request_count', { model, version }), row.value, model];
  }).sort((a, b) => b[0] / b[1] - a[0] / a[1])[0];
  const limits = [
    bound('Connections', sum(last, 'deuteron_connections_open'), sum(last, 'deuteron_connections_max'), number),
    bound('Memory', sum(last, 'deuteron_memory_used_bytes'), sum(last, 'deuteron_memory_limit_bytes'), bytes),
  ];
  if (fullest) limits.push(bound(`Fullest queue: ${fullest[2]}`, fullest[0], fullest[1], number));
  const step = sum(last, 'deuteron_memory_step');
  if (step) limits.push(['Given up for memory', `step ${step} of 4`, 'docs/operations.md says what each step is', step / 4]);
  const short = sum(last, 'deuteron_processes_short_of_cores');
  if (short) limits.push(['Processes with more threads than cores', number(short), 'the log says which']);
  figures(byId('limits'), limits);
}

function figures(list, entries) {
  list.replaceChildren(...entries.map(([name, value, more, share]) => element('div', {},
    element('dt', { textContent: name }),
    element('dd', {}, value, more ? element('small', { textContent: ` ${more}` }) : null,
      share === undefined ? null
        : element('meter', { value: Number.isFinite(share) ? share : 0, max: 1, high: 0.8, optimum: 0, 'aria-label': `${name}: ${value}` })))));
}

// A row stays as long as its model, and so does its button: who presses it must not press one that is gone.
function showModels() {
  const table = byId('model-rows');
  const before = new Map([...table.children].map((row) => [row.key, row]));
  const shown = index.map((model) => {
    const made = modelRow(model);
    const row = before.get(made.key);
    if (!row) return made;
    before.delete(made.key);
    row.querySelector('button').disabled = made.querySelector('button').disabled;
    row.setAttribute('aria-current', made.getAttribute('aria-current'));
    [...made.children].slice(1).forEach((cell, i) => {
      const old = row.children[i + 1];
      if (!old.isEqualNode(cell)) old.replaceWith(cell);
    });
    return row;
  });
  before.forEach((row) => row.remove());
  shown.forEach((row, i) => { if (table.children[i] !== row) table.insertBefore(row, table.children[i] || null); });
}

function modelRow({ name, version, state, reason }) {
  const own = { model: name, version };
  const last = looks.at(-1);
  const isReady = state === 'READY';
  const engine = rows(last, 'deuteron_model_engine', own)[0];
  const placement = rows(last, 'deuteron_model_placement', own)[0]?.labels.placement || '';
  const instances = rows(last, 'deuteron_instance_batches_total', own).length;
  const times = growth('deuteron_request_duration_us', own, WINDOW);
  const [batches, size] = [rate('deuteron_batch_size_count', own), rate('deuteron_batch_size_sum', own)];
  const waiting = sum(last, 'nv_inference_pending_request_count', own);
  const cell = (text, kind = 'n') => element('td', { className: kind, textContent: isReady || kind !== 'n' ? text : '' });
  const row = element('tr', {},
    element('th', { scope: 'row' }, element('button', {
      className: 'plain', type: 'button', textContent: version ? `${name} ${version}` : name, 'data-model': `${name}/${version}`,
      onclick: () => choose(name, version), disabled: !isReady,
    })),
    element('td', {}, element('span', { className: isReady ? 'good' : 'bad', textContent: state || 'UNKNOWN' }),
      reason ? element('small', { textContent: reason }) : null),
    cell(engine ? `${engine.labels.engine} ${engine.labels.engine_version || ''}` : '', ''),
    cell(placement === 'worker' ? `${instances} on workers` : placement === 'inline' ? 'in every shard' : placement, ''),
    cell(number(rate('nv_inference_request_success', own))), cell(number(rate('nv_inference_request_failure', own))),
    ...[0.5, 0.95, 0.99].map((share) => cell(micros(percentile(times, share)))),
    cell(number(waiting)), cell(batches ? number(size / batches) : '–'),
    element('td', {}, isReady ? sparkline(own, `${name} ${version}`) : ''));
  row.setAttribute('aria-current', String(chosen?.name === name && chosen.version === version));
  row.key = `${name}/${version}`;
  return row;
}

// Requests a second over the last minute.
function sparkline(own, name) {
  const counts = looks.map((look) => [look.at, sum(look, 'nv_inference_request_success', own)]);
  const points = counts.slice(1).map(([at, count], i) => [at, Math.max(0, count - counts[i][1]) / ((at - counts[i][0]) / 1000)]);
  const most = Math.max(1, ...points.map(([, value]) => value));
  const now = counts.at(-1)[0];
  const line = points.map(([at, value]) => `${(120 - (now - at) / (MINUTE * 1000) * 118).toFixed(1)},${(23 - value / most * 20).toFixed(1)}`);
  return drawing('svg', { width: 122, height: 26, role: 'img', 'aria-label': `${name}: at most ${number(most)} requests a second` },
    drawing('polyline', { points: line.join(' ') }));
}

function bars(place, entries, what) {
  const most = Math.max(...entries.map(([, count]) => count), 0);
  if (!most) {
    place.replaceChildren(element('p', { className: 'note', textContent: `No ${what} in the last minute.` }));
    return;
  }
  const shown = entries.filter(([, count]) => count > 0);
  place.replaceChildren(drawing('svg', {
    viewBox: `0 0 320 ${shown.length * 22}`, width: 320, role: 'img',
    'aria-label': shown.map(([name, count]) => `${name}: ${number(count)}`).join(', '),
  }, ...shown.flatMap(([name, count], i) => {
    const label = drawing('text', { x: 0, y: i * 22 + 14 });
    label.textContent = name;
    const value = drawing('text', { x: 98 + count / most * 160, y: i * 22 + 14 });
    value.textContent = number(count);
    return [label, drawing('rect', { class: 'bar', x: 90, y: i * 22 + 3, width: Math.max(1, count / most * 160), height: 14 }), value];
  })));
}

function showBatches() {
  if (!chosen) return;
  const own = { model: chosen.name, version: chosen.version };
  let below = 0;
  const sizes = growth('deuteron_batch_size', own, MINUTE).map(([bound, count]) => {
    const name = bound === Infinity ? `more than ${below}` : bound - below > 1 ? `${below + 1} to ${bound}` : `${bound}`;
    below = bound;
    return [name, count];
  });
  bars(byId('sizes'), sizes, 'batch');
  const { first, last } = pair(MINUTE);
  const releases = rows(last, 'deuteron_batches_total', own).map((row) =>
    [row.labels.reason, row.value - sum(first, 'deuteron_batches_total', { ...own, reason: row.labels.reason })]);
  bars(byId('releases'), releases, 'batch');
}

// ---- trying a model

const path = ({ name, version }) =>
  `/v2/models/${encodeURIComponent(name)}${version ? `/versions/${encodeURIComponent(version)}` : ''}`;

async function choose(name, version) {
  const asked = { name, version };
  wanted = asked;
  const at = path(asked);
  try {
    // Without its config, which may be restricted by itself, a model can be asked all the same.
    const config = askJson(`${at}/config`).catch(() => ({}));
    [asked.metadata, asked.config, server] = await Promise.all([askJson(at), config, askJson('/console/server')]);
  } catch (error) {
    handle(error, 'model');
    say(tell(error), 'bad');
    return;
  }
  refused.delete('model');
  if (wanted !== asked) return;
  chosen = asked;
  byId('detail').hidden = false;
  byId('detail-title').textContent = `${name} ${version || ''}`;
  byId('inputs').replaceChildren(...chosen.metadata.inputs.map(inputForm));
  byId('answer').replaceChildren();
  byId('took').textContent = server.asks_models ? '' : 'Not from here: the HTTP port is off or asks for certificates.';
  byId('target').value ||= `${location.hostname}:${server.http_port || 8000}`;
  byId('classes').value = labelled().size ? 3 : 0;
  byId('send').disabled = !server.asks_models;
  showModels();
  showBatches();
  showCurl();
  byId('detail-title').focus();
}

// Whether a shape may be of a picture, and how its numbers lie: [height, width, channels, channels first].
export function pictureOf(shape, datatype) {
  if (!/^(FP|U?INT8)/.test(datatype) || shape.some((size) => size < 1)) return null;
  const [a, b, c] = shape.slice(-3);
  if (shape.length >= 3 && (c === 1 || c === 3) && a > 4 && b > 4) return [a, b, c, false];
  if (shape.length >= 3 && (a === 1 || a === 3) && b > 4 && c > 4) return [b, c, a, true];
  const side = Math.sqrt(shape.at(-1));
  return Number.isInteger(side) && side >= 8 && shape.slice(0, -1).every((size) => size === 1) ? [side, side, 1, false] : null;
}

function inputForm(input) {
  const shape = input.shape.map((size) => (size < 1 ? 1 : size));
  const area = element('textarea', { spellcheck: false, 'aria-label': `Values of ${input.name}` });
  let held = null; // values that are too many for the text field
  area.oninput = () => { held = null; area.placeholder = ''; showCurl(); };
  const sizes = element('input', { value: shape.join(' '), size: 14, oninput: showCurl, 'aria-label': `Shape of ${input.name}` });
  const count = () => readShape(sizes.value).reduce((all, size) => all * size, 1);
  const isText = input.datatype === 'BYTES';
  const set = (values) => {
    const text = values.join(isText ? '\n' : ' ');
    held = values.length > SHOWN_MAX ? readValues(input.datatype, text) : null;
    area.value = held ? '' : text;
    area.placeholder = held ? `${number(held.length)} values: ${held.slice(0, 8).join(isText ? ', ' : ' ')} …` : '';
    showCurl();
  };
  const fill = (value) => set(Array.from({ length: Math.min(count(), VALUES_MAX) }, value));
  const zero = isText ? () => '' : input.datatype === 'BOOL' ? () => 'false' : () => '0';
  const some = isText ? (_, i) => `text ${i}` : input.datatype === 'BOOL' ? () => String(Math.random() < 0.5)
    : /INT/.test(input.datatype) ? () => String(Math.floor(Math.random() * 100)) : () => Math.random().toFixed(3);
  const button = (name, value) => element('button', { type: 'button', textContent: name, onclick: () => fill(value) });
  const form = element('fieldset', {},
    element('legend', { textContent: `${input.name} · ${input.datatype}` }),
    element('p', {}, element('label', {}, 'Shape ', sizes), button(isText ? 'Empty' : 'Zeros', zero), button('Random', some)),
    pictureOf(shape, input.datatype) ? pictureChooser(input, sizes, set) : null, area,
    element('small', { textContent: isText ? 'One text on each line.' : 'Numbers with blanks or commas between them.' }));
  form.read = () => ({ name: input.name, datatype: input.datatype, shape: readShape(sizes.value), data: held || readValues(input.datatype, area.value) });
  fill(zero);
  return form;
}

// A picture file becomes numbers of the input's height, width and channels.
function pictureChooser(input, sizes, set) {
  const scales = { '0 to 1': 1, '0 to 255': 255, '0 to 16': 16, '-1 to 1': -1 };
  const scale = element('select', { 'aria-label': 'Numbers of the picture' },
    ...Object.keys(scales).map((name) => element('option', { textContent: name })));
  if (/INT8/.test(input.datatype)) scale.value = '0 to 255';
  const inverse = element('input', { type: 'checkbox' });
  const file = element('input', { type: 'file', accept: 'image/*', 'aria-label': `Picture for ${input.name}` });
  const draw = async () => {
    const picture = pictureOf(readShape(sizes.value), input.datatype);
    if (!file.files[0] || !picture) return;
    const [height, width, channels, isChannelsFirst] = picture;
    const canvas = element('canvas', { width, height });
    const context = canvas.getContext('2d', { willReadFrequently: true });
    context.drawImage(await createImageBitmap(file.files[0]), 0, 0, width, height);
    const pixels = context.getImageData(0, 0, width, height).data;
    const most = scales[scale.value];
    const value = (at, channel) => {
      const grey = (pixels[at] * 0.299 + pixels[at + 1] * 0.587 + pixels[at + 2] * 0.114) / 255;
      let share = channels === 1 ? grey : pixels[at + channel] / 255;
      if (inverse.checked) share = 1 - share;
      const scaled = most < 0 ? share * 2 - 1 : share * most;
      return /INT/.test(input.datatype) ? Math.round(scaled) : Number(scaled.toFixed(4));
    };
    const values = [];
    for (let i = 0; i < height * width * channels; i += 1) {
      const [pixel, channel] = isChannelsFirst ? [i % (height * width), Math.floor(i / (height * width))]
        : [Math.floor(i / channels), i % channels];
      values.push(value(pixel * 4, channel));
    }
    set(values);
  };
  file.onchange = draw;
  scale.onchange = draw;
  inverse.onchange = draw;
  return element('p', {}, element('label', {}, 'Picture ', file), element('label', {}, 'as numbers ', scale),
    element('label', {}, inverse, ' dark is high'));
}

const readShape = (text) => text.split(/[\s,x×]+/).filter(Boolean).map(Number);

function readValues(datatype, text) {
  if (datatype === 'BYTES') return text.split('\n');
  const words = text.split(/[\s,]+/).filter(Boolean);
  if (datatype === 'BOOL') return words.map((word) => word === 'true' || word === '1');
  // Beyond what a number of JavaScript holds, a whole number is kept as it was typed.
  return words.map((word) => (/^-?\d{16,}$/.test(word) ? JSON.rawJSON?.(word) ?? Number(word) : Number(word)));
}

// The outputs that have a file of labels.
const labelled = () => new Set((chosen.config.output || []).filter((output) => output.label_filename).map(({ name }) => name));

function requestBody() {
  const request = { inputs: [...byId('inputs').children].map((form) => form.read()) };
  const classes = Number(byId('classes').value);
  if (classes > 0) {
    // Of outputs with labels; where none has any, of all that are numbers.
    const names = labelled();
    const hasClasses = ({ name, datatype }) => (names.size ? names.has(name) : !/^(BYTES|BOOL)$/.test(datatype));
    request.outputs = chosen.metadata.outputs.map((output) => (
      hasClasses(output) ? { name: output.name, parameters: { classification: classes } } : { name: output.name }));
  }
  return JSON.stringify(request);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// What is too long for an argument comes as input. The key is that of the shell, and is not shown.
export function curlLine() {
  const url = quoted(`http${server.http_tls ? 's' : ''}://${byId('target').value}${path(chosen)}/infer`);
  const line = `curl -s ${url}${apiKey ? ' -H "Authorization: Bearer $DEUTERON_KEY"' : ''}`;
  const body = requestBody();
  const argument = quoted(body);
  return new Blob([argument]).size > ARGUMENT_MAX ? `${line} -d @- <<'EOF'\n${body}\nEOF` : `${line} -d ${argument}`;
}

function showCurl() {
  const line = curlLine();
  byId('curl').textContent = line.length > 2000 ? `${line.slice(0, 2000)} … (${line.length} characters; Copy has all)` : line;
}

async function send(event) {
  event.preventDefault();
  const [asked, began] = [chosen, performance.now()];
  try {
    const answer = await askJson(`${path(asked)}/infer`, { method: 'POST', body: requestBody(), isPatient: true });
    refused.delete('infer');
    if (chosen !== asked) return;
    byId('took').textContent = `${(performance.now() - began).toFixed(1)} ms, as the browser sees it`;
    byId('answer').replaceChildren(...answer.outputs.map(showOutput));
  } catch (error) {
    handle(error, 'infer');
    if (chosen !== asked) return;
    byId('took').textContent = '';
    byId('answer').replaceChildren(element('p', { className: 'bad', textContent: error.message }));
  }
}

function showOutput({ name, datatype, shape, data }) {
  const title = element('h4', { textContent: `${name} · ${datatype} [${shape.join(', ')}]` });
  const classes = datatype === 'BYTES' ? data.map((text) => /^(-?[\d.eE+-]+|nan|-?inf):(\d+)(?::(.*))?$/s.exec(text)) : [];
  if (classes.length && classes.every(Boolean)) {
    const scores = classes.map((found) => (Number.isFinite(Number(found[1])) ? Number(found[1]) : 0));
    const most = Math.max(...scores, 1e-9);
    return element('div', {}, title, table(['Class', 'Score', ''], classes.map((found, i) => [
      found[3] || found[2], found[1],
      element('meter', { value: Math.max(0, scores[i]), max: most, 'aria-label': `${found[1]} of ${most}` })])));
  }
  const shown = data.slice(0, 100);
  const width = Math.max(1, Math.min(shape.at(-1) || 1, 10));
  const lines = [];
  for (let i = 0; i < shown.length; i += width) {
    lines.push([`${i}`, ...shown.slice(i, i + width).map((value) => (typeof value === 'number' && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value)))]);
  }
  const more = data.length > shown.length ? element('p', { className: 'note', textContent: `and ${number(data.length - shown.length)} more` }) : null;
  return element('div', {}, title, table(['from', ...Array.from({ length: width }, (_, i) => `+${i}`)], lines), more);
}

function table(heads, lines) {
  return element('div', { className: 'scroll' }, element('table', {},
    element('thead', {}, element('tr', {}, ...heads.map((head) => element('th', { scope: 'col', textContent: head })))),
    element('tbody', {}, ...lines.map(([first, ...rest]) => element('tr', {},
      element('th', { scope: 'row', textContent: first }), ...rest.map((cell) => element('td', {}, cell)))))));
}

// ---- the log

async function readLog() {
  if (isPaused || refused.has('log')) return;
  try {
    const { next, lines } = await askJson(`/console/logs/${nextLine}`);
    // A server that was started again counts from 0.
    if (next < nextLine) { nextLine = 0; return; }
    nextLine = next;
    const log = byId('log');
    const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    log.append(...lines.map((line) => element('span', { className: severity(line), textContent: `${line}\n` })));
    while (log.childElementCount > 300) log.firstChild.remove();
    if (isAtEnd) log.scrollTop = log.scrollHeight;
    byId('log-why').textContent = '';
  } catch (error) {
    byId('log-why').textContent = tell(error);
    // A key that is good for all else need not be good for the log.
    if (error.status === 403) refused.set('log', false); else handle(error, 'log');
  }
}

// Lines say it themselves, by a first letter or a field; the colour only repeats it.
const severity = (line) => (/^E\d|"severity":"ERROR"/.test(line) ? 'E' : /^W\d|"severity":"WARNING"/.test(line) ? 'W' : '');

// ---- every second

function say(text, kind) {
  const state = byId('state');
  if (state.textContent !== text) state.textContent = text;
  state.className = kind;
}

async function look() {
  if (refused.has('metrics')) return;
  let metrics;
  try {
    metrics = await (await ask('/metrics')).text();
  } catch (error) {
    handle(error, 'metrics');
    say(tell(error), 'bad');
    return;
  }
  const scrape = { at: performance.now(), families: parseMetrics(metrics) };
  // Counters that fell are those of a server that was started again.
  const before = looks.at(-1);
  const total = 'deuteron_requests_received_total';
  if (before && sum(scrape, total) < sum(before, total)) looks = [];
  looks = [...looks.filter((old) => old.at > scrape.at - (MINUTE + 2) * 1000), scrape];
  if (!refused.has('server')) await lookAtServer();
  byId('key-form').hidden = ![...refused.values()].includes(true);
  showTotals();
  showModels();
  showBatches();
}

async function lookAtServer() {
  try {
    const [about, ready] = await Promise.all([askJson('/v2'),
      fetch('/v2/health/ready', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) })]);
    byId('server').textContent = `${about.name} ${about.version}`;
    document.title = `${about.name} ${about.version}`;
    const why = ready.ok ? '' : await ready.text();
    say(ready.ok ? 'ready' : `not ready ${why}`, ready.ok ? 'good' : 'bad');
    index = await askJson('/v2/repository/index', { method: 'POST', body: '{}' });
  } catch (error) {
    handle(error, 'server');
    say(tell(error), 'bad');
  }
}

async function run() {
  try {
    if (!document.hidden) await Promise.all([look(), readLog()]);
  } finally {
    setTimeout(run, PERIOD);
  }
}

byId('try').onsubmit = send;
byId('classes').oninput = showCurl;
byId('target').oninput = showCurl;
byId('copy').onclick = async () => {
  try {
    await navigator.clipboard.writeText(curlLine());
    byId('copied').textContent = 'copied';
  } catch {
    byId('copied').textContent = 'the browser does not allow it: select the line';
    byId('curl').textContent = curlLine();
  }
};
byId('pause').onclick = () => {
  isPaused = !isPaused;
  byId('pause').setAttribute('aria-pressed', String(isPaused));
};
byId('key-form').onsubmit = (event) => {
  event.preventDefault();
  apiKey = byId('key').value;
  refused.clear();
  if (chosen) showCurl();
};
run();
