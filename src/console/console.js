// The console of a Deuteron server: shows its figures, models and log, and sends requests to models by their metadata. What
// comes from the server goes into the page as text alone: names of models and lines of the log are hostile.

import { bars, hourChart, sparkline } from './chart.js';
import { ensembleDiagram } from './ensemble.js';
import { bodyOf, inputForm } from './input.js';
import * as metrics from './metrics.js';
import { bytes, byId, element, figures, micros, number, percent, scores, table } from './page.js';
import { access, ask, askJson, askReady, askText, modelPath, parseJson, refused, tell } from './server.js';

const PERIOD = 1000;
const PERIOD_MAX = 15 * 1000;
// Bytes a second of each thing that is polled: the larger it is, the less often.
const PACES = { metrics: 24 * 1024, statistics: 8 * 1024, server: 8 * 1024 };
const ARGUMENT_MAX = 100 * 1024; // bytes of a body in the line of curl: Linux takes 128 KiB in an argument
const SHELL_MAX = 2000; // characters of the line of curl that are shown

let server = { http_port: 8000, http_tls: false, asks_models: true, changes_models: false };
let index = []; // the models in natural order: {name, version, state, reason, key, label}
let chosen = null; // the model of the address: {key, name, version, state}; with metadata and config once these are known
let stepStatistics = new Map(); // of the chosen ensemble: {success} by model
let nextLine = 0;
let isPaused = false;
let timer = null;
let isRunning = false;

// ---- the overview

function showTotals() {
  const { rows, sum } = metrics;
  const reasons = rows('deuteron_requests_refused_total').filter((row) => row.value > 0)
    .map((row) => `${row.labels.reason} ${number(row.value)}`).join(', ');
  figures(byId('totals'), [
    ['Requests/s', number(metrics.rate('deuteron_requests_succeeded_total'))],
    ['Refused/s', number(metrics.rate('deuteron_requests_refused_total'))],
    ['Running now', number(sum('deuteron_requests_in_flight'))],
    ['Answered since start', number(sum('deuteron_requests_succeeded_total'))],
    ['Refused since start', number(sum('deuteron_requests_refused_total')), reasons],
  ]);
  showLimits();
}

function showLimits() {
  const { rows, sum } = metrics;
  const bound = (name, used, most, text) => [name, `${text(used)} of ${text(most)}`, '', most > 0 ? used / most : 0];
  const limits = [
    bound('Memory of the server', sum('deuteron_memory_used_bytes'), sum('deuteron_memory_limit_bytes'), bytes),
    bound('Connections', sum('deuteron_connections_open'), sum('deuteron_connections_max'), number),
  ];
  const queue = fullestQueue();
  if (queue) limits.push(bound(`Fullest queue: ${queue.model}`, queue.waiting, queue.most, number));
  if (rows('nv_cpu_utilization').length) limits.push(['CPU of the machine', percent(sum('nv_cpu_utilization')), '', sum('nv_cpu_utilization')]);
  const total = sum('nv_cpu_memory_total_bytes');
  if (total) limits.push(bound('Memory of the machine', sum('nv_cpu_memory_used_bytes'), total, bytes));
  const processes = sum('deuteron_model_process_memory_bytes');
  if (processes) limits.push(['Memory of models in own processes', bytes(processes)]);
  const step = sum('deuteron_memory_step');
  if (step) limits.push(['Memory is short', `step ${step} of 4`, 'docs/operations.md says what each step is', step / 4]);
  const short = sum('deuteron_processes_short_of_cores');
  if (short) limits.push(['Processes with more threads than cores', number(short), 'the log says which']);
  figures(byId('limits'), limits);
}

function fullestQueue() {
  return metrics.rows('deuteron_queue_requests_max').map(({ labels: { model, version }, value }) => (
    { model, waiting: metrics.sum('nv_inference_pending_request_count', { model, version }), most: value }))
    .sort((a, b) => b.waiting / b.most - a.waiting / a.most)[0];
}

// ---- the models

const order = new Intl.Collator('en', { numeric: true, sensitivity: 'base' }).compare;

// States as the index has them, in plain words.
function stateText({ state, reason }) {
  if (state === 'UNAVAILABLE') return reason && reason !== 'unloaded' ? 'failed' : 'not loaded';
  return state ? state.toLowerCase() : 'not loaded';
}

function sorted(models) {
  const counts = Map.groupBy(models, ({ name }) => name);
  return models.map((model) => ({ ...model, version: model.version || '', key: metrics.keyOf(model.name, model.version), text: stateText(model),
    label: model.version && (counts.get(model.name).length > 1 || model.version !== '1') ? `${model.name} ${model.version}` : model.name }))
    .sort((a, b) => order(a.name, b.name) || order(a.version, b.version));
}

// The address of a model; with its version if there are several.
function linkOf(name, version) {
  const isOne = index.filter((model) => model.name === name).length < 2;
  return `#/models/${encodeURIComponent(name)}${version && !isOne ? `/${encodeURIComponent(version)}` : ''}`;
}

function showState(unready) {
  const failed = index.filter(({ text }) => text === 'failed');
  const count = `${failed.length} of ${index.length} failed`;
  if (unready) say(failed.length ? `not ready: ${count}` : `not ready: ${unready}`, 'bad');
  else say(failed.length ? `ready, but ${count}` : 'ready', failed.length ? 'bad' : 'good');
  const box = byId('failed');
  if (box.hidden && failed.length) box.open = failed.length <= 3;
  box.hidden = !failed.length;
  byId('failed-title').textContent = failed.length === 1 ? '1 model failed to load' : `${failed.length} models failed to load`;
  const made = failed.map(({ name, version, label, reason }) => element('li', {},
    element('a', { href: linkOf(name, version), textContent: label }), ` ${reason}`));
  if (made.map((line) => line.textContent).join() !== byId('failed-models').textContent) byId('failed-models').replaceChildren(...made);
}

// A row stays as long as its model, and so does its link: a click must not fall on one that is gone.
function showModels() {
  const body = byId('model-rows');
  const words = byId('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const isShown = ({ label, text }) => words.every((word) => `${label} ${text}`.toLowerCase().includes(word));
  const before = new Map([...body.children].map((row) => [row.key, row]));
  const shown = index.filter(isShown).map((model) => {
    const made = modelRow(model);
    const row = before.get(made.key);
    if (!row) return made;
    before.delete(made.key);
    row.setAttribute('aria-current', made.getAttribute('aria-current'));
    row.querySelector('a').href = made.querySelector('a').href;
    [...made.children].slice(1).forEach((cell, i) => {
      const old = row.children[i + 1];
      if (!old.isEqualNode(cell)) old.replaceWith(cell);
    });
    return row;
  });
  before.forEach((row) => row.remove());
  shown.forEach((row, i) => { if (body.children[i] !== row) body.insertBefore(row, body.children[i] || null); });
  byId('filtered').textContent = words.length ? `${shown.length} of ${index.length}` : `${index.length}`;
}

const STATE_CLASSES = { ready: 'good', failed: 'bad' };

function modelRow({ name, version, label, key, text }) {
  const own = { model: name, version };
  const isReady = text === 'ready';
  const times = metrics.requestTimes(own);
  const { requests, failures, batch } = metrics.ratesOf(key);
  const cell = (value, kind) => element('td', { className: kind, textContent: isReady ? value : '' });
  const row = element('tr', {},
    element('th', { scope: 'row' }, element('a', { href: linkOf(name, version), 'data-model': key }, ...breakable(label))),
    element('td', { className: STATE_CLASSES[text] || 'note', textContent: text }),
    cell(engineOf(own), 'wide'), cell(placeOf(own), 'wide'),
    cell(number(requests), 'n'), cell(number(failures), 'n wide'),
    cell(micros(metrics.percentile(times, 0.5)), 'n wide'), cell(micros(metrics.percentile(times, 0.95)), 'n'), cell(micros(metrics.percentile(times, 0.99)), 'n wide'),
    cell(number(metrics.sum('nv_inference_pending_request_count', own)), 'n wide'), cell(number(batch), 'n wide'),
    element('td', { className: 'minute' }, isReady ? sparkline(metrics.minuteOf(key), label) : ''));
  row.setAttribute('aria-current', String(chosen?.key === key));
  row.key = key;
  return row;
}

// A long name breaks after its punctuation, not in a word.
const breakable = (label) => label.split(/(?<=[_.\-/: ])/).flatMap((part) => [part, element('wbr')]);

function engineOf(own) {
  const labels = metrics.rows('deuteron_model_engine', own)[0]?.labels;
  return labels ? `${labels.engine} ${labels.engine_version || ''}` : '';
}

// The threads that run a model: those of its instances, or those of the connections.
function placeOf(own) {
  const placement = metrics.rows('deuteron_model_placement', own)[0]?.labels.placement || '';
  const instances = metrics.rows('deuteron_instance_batches_total', own).length;
  return { inline: 'server threads', worker: instances === 1 ? '1 own thread' : `${instances} own threads`, ensemble: 'its steps' }[placement] ?? placement;
}

// The memory of a model that runs in processes of its own.
function memoryOf(own) {
  const size = metrics.rows('deuteron_model_process_memory_bytes', own)[0]?.value;
  return size === undefined ? '' : bytes(size);
}

// ---- the chosen model

// The model of the address: the newest version that is ready, if it names none.
function addressed() {
  const found = /^#\/models\/([^/]+)(?:\/([^/]+))?$/.exec(location.hash);
  if (!found) return null;
  try {
    const [name, version] = found.slice(1).map((part) => part && decodeURIComponent(part));
    const versions = index.filter((model) => model.name === name && (version === undefined || model.version === version));
    return versions.findLast(({ text }) => text === 'ready') || versions.at(-1)
      || { name, version: version || '', key: metrics.keyOf(name, version), label: name, text: 'failed', reason: 'The server has no such model.' };
  } catch {
    return null; // no address that this page made
  }
}

// Follows the address, and the state of its model. `isAsked` if a person went there.
async function choose(isAsked) {
  const model = addressed();
  if (model?.key === chosen?.key && model?.text === chosen?.text) return;
  if (refused.has('model') && !isAsked) return;
  const before = chosen;
  chosen = model && { ...model };
  stepStatistics = new Map();
  document.body.classList.toggle('chosen', Boolean(model));
  byId('detail').hidden = !model;
  showModels();
  if (!model) {
    if (isAsked && before) document.querySelector(`[data-model="${CSS.escape(before.key)}"]`)?.focus();
    return;
  }
  byId('detail-title').textContent = model.label;
  byId('serving').hidden = true;
  byId('why').hidden = model.text === 'ready';
  byId('why').textContent = model.text === 'failed' ? model.reason : `The model is ${model.text}.`;
  if (model.text === 'ready') await open(chosen);
  if (chosen?.key !== model.key) return;
  showShell();
  if (isAsked) bringIntoView();
}

async function open(model) {
  const at = modelPath(model);
  try {
    // Without its config, which may be restricted by itself, a model can be asked all the same.
    const config = askJson(`${at}/config`).catch(() => ({}));
    [model.metadata, model.config, server] = await Promise.all([askJson(at), config, askJson('/console/server')]);
  } catch (error) {
    handle(error, 'model');
    say(tell(error), 'bad');
    if (chosen === model) chosen = null; // tried again with the next look at the index
    return;
  }
  refused.delete('model');
  if (chosen !== model) return;
  model.texts = await textsOf(model);
  if (chosen !== model) return;
  showForm();
  byId('took').textContent = server.asks_models ? '' : 'Not from here: the HTTP port is off or asks for certificates.';
  byId('target').value ||= `${location.hostname}:${server.http_port || 8000}`;
  byId('classes').value = labelled().size ? 3 : 0;
  byId('send').disabled = !server.asks_models;
  byId('steps').hidden = !isEnsemble(model);
  byId('serving').hidden = false;
  showDetail();
  readOwnStatistics();
}

// The form of texts, if it is a model of texts.
async function textsOf(model) {
  if (!model.metadata.inputs.some(({ name }) => /^(text|question)$/.test(name))) return null;
  return import('./text.js').then(({ textForm }) => textForm(model, showShell)).catch(() => null);
}

const usesTexts = () => chosen.texts && !byId('tensors').checked;

function showForm() {
  byId('inputs').replaceChildren(...(usesTexts() ? chosen.texts.parts : chosen.metadata.inputs.map((input) => inputForm(input, showShell))));
  byId('answer').replaceChildren();
  byId('forms').hidden = !chosen.texts;
  byId('class-count').hidden = usesTexts();
}

// The form is in view: beside the list, or below it on a phone.
function bringIntoView() {
  const isBeside = matchMedia('(min-width: 60rem)').matches;
  if (isBeside) document.querySelector('tr[aria-current=true]')?.scrollIntoView({ block: 'nearest' });
  byId('detail').scrollTop = 0;
  byId('detail-title').focus({ preventScroll: true });
  (isBeside ? byId('split') : byId('detail')).scrollIntoView({ block: 'start' });
}

const isEnsemble = (model) => Boolean(model.config?.ensemble_scheduling?.step?.length);

function showDetail() {
  if (!chosen?.metadata) return;
  const own = { model: chosen.name, version: chosen.version };
  const facts = [['Engine', engineOf(own)], ['Runs on', placeOf(own)], ['Version', chosen.version],
    ['Memory of its processes', memoryOf(own)], ['Largest batch', chosen.config.max_batch_size ? number(chosen.config.max_batch_size) : '']];
  figures(byId('facts'), facts.filter(([, value]) => value));
  showHour();
  showBatches(own);
  if (isEnsemble(chosen)) showSteps();
}

function showHour() {
  const { requests, failures, mean, p95 } = metrics.hourOf(chosen.key);
  byId('hour').replaceChildren(
    hourChart('Throughput', [['requests/s', requests], ['errors/s', failures]], number, 1),
    hourChart('Latency', [['mean', mean], ['p95', p95]], micros, 10));
}

// A drawing that has the focus stays.
function showSteps() {
  const times = chosen.config.ensemble_scheduling.step.map((step) => {
    const found = stepStatistics.get(step.model_name);
    return found ? metrics.meanTime(found) : null;
  });
  const text = String(times);
  const place = byId('diagram');
  if (place.firstChild && place.drawn === `${chosen.key} ${text}`) return;
  if (place.contains(document.activeElement)) return;
  place.drawn = `${chosen.key} ${text}`;
  place.replaceChildren(ensembleDiagram(chosen.config, times, (name) => linkOf(name)));
}

const REASONS = {
  deadline: 'a deadline is near', delay: 'waited long enough', full: 'largest size', idle: 'nothing else to do',
  preferred: 'preferred size', shape: 'another shape comes',
};

function showBatches(own) {
  if (!metrics.hasLook()) return;
  let below = 0;
  const sizes = metrics.growth('deuteron_batch_size', own, metrics.MINUTE).map(([bound, count]) => {
    const name = bound === Infinity ? `more than ${below}` : bound - below > 1 ? `${below + 1} to ${bound}` : `${bound}`;
    below = bound;
    return [name, count];
  });
  bars(byId('sizes'), sizes, 'batch');
  const releases = metrics.rows('deuteron_batches_total', own).map(({ labels: { reason } }) =>
    [REASONS[reason] || reason, metrics.grown('deuteron_batches_total', { ...own, reason })]);
  bars(byId('releases'), releases, 'batch');
}

// ---- trying a model

// The outputs that have a file of labels.
const labelled = () => new Set((chosen.config.output || []).filter((output) => output.label_filename).map(({ name }) => name));

const readInputs = () => [...byId('inputs').children].map((form) => form.read()).filter(Boolean);

function requestBody(inputs = readInputs()) {
  const classes = Number(byId('classes').value);
  if (!(classes > 0) || usesTexts()) return bodyOf(inputs);
  // Of outputs with labels; where none has any, of all that are numbers.
  const names = labelled();
  const hasClasses = ({ name, datatype }) => (names.size ? names.has(name) : !/^(BYTES|BOOL)$/.test(datatype));
  return bodyOf(inputs, chosen.metadata.outputs.map((output) => (
    hasClasses(output) ? { name: output.name, parameters: { classification: classes } } : { name: output.name })));
}

// The request of a body: values from files come after the JSON.
function requestOf({ json, tail }) {
  if (!tail.length) return { body: json };
  const head = new TextEncoder().encode(json);
  return { body: new Blob([head, ...tail.flatMap(({ size, bytes }) => [size, bytes])]), headers: { 'Inference-Header-Content-Length': String(head.length) } };
}

async function send(event) {
  event.preventDefault();
  const [asked, texts, inputs, began] = [chosen, usesTexts(), readInputs(), performance.now()];
  try {
    const { outputs } = await askJson(`${modelPath(asked)}/infer`, { method: 'POST', ...requestOf(requestBody(inputs)), isPatient: true });
    const took = performance.now() - began;
    refused.delete('infer');
    const shown = texts ? await asked.texts.show(inputs, outputs) : outputs.map(showOutput);
    if (chosen !== asked) return;
    byId('took').textContent = `${took.toFixed(1)} ms, as the browser sees it`;
    byId('answer').replaceChildren(...shown);
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
    return element('div', {}, title, scores(['Class'], classes.map((found) => [found[3] || found[2], found[1]])));
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

// ---- the same from a shell

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const curl = (path, more = '') => `curl -s ${more}${quoted(`http${server.http_tls ? 's' : ''}://${byId('target').value}${path}`)}`
  + `${access.key ? ' -H "Authorization: Bearer $DEUTERON_KEY"' : ''}`;

// A body that is too long for an argument comes as input. The key is that of the shell, and is not shown.
export function curlLine() {
  const line = curl(`${modelPath(chosen)}/infer`);
  const { json, tail } = requestBody();
  const argument = quoted(json);
  if (tail.length) return `{ printf %s ${argument}; ${tail.map(fileWords).join('; ')}; } | ${line} -H 'Inference-Header-Content-Length: ${new Blob([json]).size}' --data-binary @-`;
  return new Blob([argument]).size > ARGUMENT_MAX ? `${line} -d @- <<'EOF'\n${json}\nEOF` : `${line} -d ${argument}`;
}

const fileWords = ({ size, name }) => `printf '${[...size].map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join('')}'; cat ${quoted(`./${name}`)}`;

function showShell() {
  if (!chosen) return;
  const line = chosen.metadata ? curlLine() : '';
  byId('curl').hidden = !line;
  byId('copy').hidden = !line;
  byId('curl').textContent = line.length > SHELL_MAX ? `${line.slice(0, SHELL_MAX)} … (${number(line.length)} characters; Copy has all)` : line;
  const change = (what) => curl(`/v2/repository/models/${encodeURIComponent(chosen.name)}/${what}`, '-X POST ');
  byId('change').textContent = `${change('load')}\n${change('unload')}`;
  byId('changes').hidden = !server.changes_models || !access.key;
}

// Loads or unloads the chosen model. A load may take minutes.
async function changeModel(what) {
  const { name } = chosen;
  const tellChange = (text, kind) => {
    byId('changed').textContent = text;
    byId('changed').className = kind;
  };
  for (const button of ['load', 'unload']) byId(button).disabled = true;
  tellChange(`${what} …`, '');
  try {
    await ask(`/v2/repository/models/${encodeURIComponent(name)}/${what}`, { method: 'POST', isPatient: true });
    tellChange(`${name} is ${what}ed`, '');
  } catch (error) {
    tellChange(`${name}: ${error.message}`, 'bad');
  }
  for (const button of ['load', 'unload']) byId(button).disabled = false;
  due.server = 0;
}

async function copy() {
  try {
    await navigator.clipboard.writeText(curlLine());
    byId('copied').textContent = 'copied';
  } catch {
    byId('copied').textContent = 'the browser does not allow it: select the line';
    byId('curl').textContent = curlLine();
  }
}

// ---- polling

function say(text, kind) {
  const state = byId('state');
  if (state.textContent !== text) state.textContent = text;
  state.className = kind;
}

// Asks for a key where one is missing; `part` is not asked for again before another key is there.
function handle(error, part) {
  if (error.status !== 401 && error.status !== 403) return;
  refused.set(part, true);
  byId('key-why').textContent = error.message;
}

// Each answers with the size of what it read.
const readers = {
  async metrics() {
    const text = await askText('/metrics');
    metrics.addLook(text);
    showTotals();
    return text.length;
  },
  async server() {
    if (document.title === 'Deuteron') {
      const about = await askJson('/v2');
      document.title = `${about.name} ${about.version}`;
      byId('server').textContent = document.title;
    }
    const [unready, text] = await Promise.all([askReady(), askText('/v2/repository/index', { method: 'POST', body: '{}' })]);
    const isFirst = !index.length;
    index = sorted(parseJson(text));
    showState(unready);
    choose(isFirst);
    return text.length;
  },
  async statistics() {
    const text = await askText('/v2/models/stats');
    metrics.addStatistics(parseJson(text).model_stats);
    return text.length;
  },
  own: readOwnStatistics,
  async log() {
    if (!isPaused) await readLog();
    return 0;
  },
};
const due = {};

async function read(part) {
  if (refused.has(part) || (due[part] || 0) > Date.now()) return;
  try {
    const size = await readers[part]();
    due[part] = Date.now() + Math.min(PERIOD_MAX, size / (PACES[part] || Infinity) * 1000) - PERIOD / 2;
  } catch (error) {
    handle(error, part);
    if (part !== 'own') say(tell(error), 'bad');
  }
}

// The chosen model each second, and the steps of an ensemble: less than all models.
async function readOwnStatistics() {
  if (!chosen?.metadata || refused.has('statistics')) return 0;
  const model = chosen;
  const steps = isEnsemble(model) ? model.config.ensemble_scheduling.step.map((step) => ({
    name: step.model_name, version: step.model_version > 0 ? String(step.model_version) : '' })) : [];
  const [own, ...others] = await Promise.all([model, ...steps].map((one) => askJson(`${modelPath(one)}/stats`)));
  if (chosen !== model) return 0;
  metrics.addStatistics(own.model_stats);
  // Of a step without a version, the newest one that serves.
  stepStatistics = new Map(steps.map(({ name }, i) => [name, others[i].model_stats.at(-1).inference_stats]));
  return 0;
}

async function readLog() {
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

// A hidden page asks nothing.
async function run() {
  clearTimeout(timer);
  if (document.hidden || isRunning) return;
  isRunning = true;
  try {
    await Promise.all(Object.keys(readers).map(read));
    byId('key-form').hidden = ![...refused.values()].includes(true);
    showModels();
    showDetail();
  } finally {
    isRunning = false;
    timer = setTimeout(run, PERIOD);
  }
}

byId('try').onsubmit = send;
byId('classes').oninput = showShell;
byId('tensors').onchange = () => { showForm(); showShell(); };
byId('target').oninput = showShell;
byId('copy').onclick = copy;
for (const what of ['load', 'unload']) byId(what).onclick = () => changeModel(what);
byId('filter').oninput = showModels;
byId('pause').onclick = () => {
  isPaused = !isPaused;
  byId('pause').setAttribute('aria-pressed', String(isPaused));
};
byId('key-form').onsubmit = (event) => {
  event.preventDefault();
  access.key = byId('key').value;
  refused.clear();
  showShell();
};
document.querySelector('.skip').onclick = (event) => {
  event.preventDefault(); // the address is that of the model
  byId('models').focus();
};
addEventListener('hashchange', () => choose(true));
document.addEventListener('visibilitychange', () => (document.hidden ? metrics.keep() : run()));
addEventListener('pagehide', metrics.keep);
metrics.restore();
run();
