// The figures of the server: Prometheus's text for percentiles and limits, and the statistics of models, which are much
// smaller, for rates and the last hour.

export const MINUTE = 60 * 1000;
export const HOUR = 60 * MINUTE;
const WINDOW = 10 * 1000; // rates and percentiles are of this time, or of the last two looks if these are further apart
const HOUR_STEP = 10 * 1000; // the hour has a sample for each of these
const APART = 500; // samples of a model that are closer than this tell nothing of its rate
const STORE = 'deuteron-hours';

let looks = []; // the scrapes of the last minute, the newest last
const histories = new Map(); // by key: the samples of the last minute, and those of the last hour

export const keyOf = (name, version) => `${name}/${version || ''}`;

// ---- Prometheus's text

// Families by name: {all, byModel}, of rows {labels, value}.
export function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split('\n')) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    }
    if (!families.has(found[1])) families.set(found[1], { all: [], byModel: new Map() });
    const { all, byModel } = families.get(found[1]);
    all.push({ labels, value: Number(found[3]) });
    if (!byModel.has(labels.model)) byModel.set(labels.model, []);
    byModel.get(labels.model).push(all.at(-1));
  }
  return families;
}

export function addLook(text) {
  const look = { at: Date.now(), families: parseMetrics(text) };
  // Counters that fell are those of a server that was started again.
  const total = 'deuteron_requests_received_total';
  if (looks.length && sumOf(look, total) < sum(total)) looks = [];
  looks = [...looks.filter((old) => old.at > look.at - MINUTE - 2 * WINDOW), look];
}

function rowsOf(look, name, wanted) {
  const family = look?.families.get(name);
  const rows = (wanted.model === undefined ? family?.all : family?.byModel.get(wanted.model)) || [];
  return rows.filter((row) => Object.entries(wanted).every(([label, value]) => row.labels[label] === value));
}

const sumOf = (look, name, wanted = {}) => rowsOf(look, name, wanted).reduce((total, row) => total + row.value, 0);

export const hasLook = () => looks.length > 0;
export const rows = (name, wanted = {}) => rowsOf(looks.at(-1), name, wanted);
export const sum = (name, wanted) => sumOf(looks.at(-1), name, wanted);

// The newest look, and the first of a span before it.
function pair(span) {
  const last = looks.at(-1);
  return { last, first: looks.findLast((look) => look.at <= last.at - span) || looks[0] };
}

// The growth of a counter in the last minute.
export function grown(name, wanted) {
  const { first, last } = pair(MINUTE);
  return Math.max(0, sumOf(last, name, wanted) - sumOf(first, name, wanted));
}

export function rate(name, wanted) {
  if (looks.length < 2) return null;
  const { first, last } = pair(WINDOW);
  return Math.max(0, sumOf(last, name, wanted) - sumOf(first, name, wanted)) / ((last.at - first.at) / 1000);
}

// The growth of each bucket of a histogram: [[upper bound, count], …], the bounds ascending.
export function growth(name, wanted, span = WINDOW) {
  if (!looks.length) return [];
  const { first, last } = pair(span);
  const before = new Map(rowsOf(first, `${name}_bucket`, wanted).map((row) => [row.labels.le, row.value]));
  const all = rowsOf(last, `${name}_bucket`, wanted)
    .map((row) => [row.labels.le === '+Inf' ? Infinity : Number(row.labels.le), Math.max(0, row.value - (before.get(row.labels.le) || 0))])
    .sort((a, b) => a[0] - b[0]);
  return all.map(([bound, count], i) => [bound, Math.max(0, count - (i ? all[i - 1][1] : 0))]);
}

// The growth of the histogram of a model's request times, its bounds in microseconds.
export const requestTimes = (wanted) => growth('deuteron_request_duration_seconds', wanted).map(([bound, count]) => [bound * 1e6, count]);

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

// ---- statistics of models

// Samples are [time, requests, failures, their nanoseconds, batches, rows]; those of the hour end with the p95 instead of
// the last two.
export function addStatistics(stats) {
  const at = Date.now();
  for (const { name, version, inference_stats: { success, fail }, execution_count: batches, inference_count: served } of stats) {
    const key = keyOf(name, version);
    const own = histories.get(key) || { minute: [], hour: [] };
    const sample = [at, success.count, fail.count, success.ns, batches, served];
    // The model's own answer and that of all models come at about the same time.
    if (at - own.minute.at(-1)?.[0] < APART) continue;
    if (own.minute.length && success.count < own.minute.at(-1)[1]) own.minute = [];
    own.minute = [...own.minute.filter(([time]) => time > at - MINUTE - WINDOW), sample];
    if (!own.hour.length || at - own.hour.at(-1)[0] >= HOUR_STEP) {
      const p95 = percentile(requestTimes({ model: name, version }), 0.95);
      own.hour = [...own.hour.filter(([time]) => time > at - HOUR), [...sample.slice(0, 4), p95]];
    }
    histories.set(key, own);
  }
}

// Requests and failures a second, and the mean batch; null before there are two samples.
export function ratesOf(key) {
  const samples = histories.get(key)?.minute || [];
  const last = samples.at(-1);
  const first = samples.findLast(([at]) => at <= last[0] - WINDOW) || samples[0];
  if (samples.length < 2) return { requests: null, failures: null, batch: null };
  const [time, requests, failures, , batches, served] = last.map((value, i) => value - first[i]);
  return { requests: requests / time * 1000, failures: failures / time * 1000, batch: batches ? served / batches : null };
}

// Requests a second over the last minute: [[time, rate], …].
export const minuteOf = (key) => steps(histories.get(key)?.minute || [], ([time, requests]) => requests / time * 1000);

// The last hour as [[time, value], …]: requests and failures a second, and mean and p95 in microseconds. A gap is null.
export function hourOf(key) {
  const samples = histories.get(key)?.hour || [];
  return {
    requests: steps(samples, ([time, requests]) => requests / time * 1000),
    failures: steps(samples, ([time, , failures]) => failures / time * 1000),
    mean: steps(samples, ([, requests, , ns]) => (requests ? ns / requests / 1000 : null)),
    p95: samples.flatMap(([at, , , , p95], i) => [...(i && isLong(samples[i - 1][0], at) ? [[at, null]] : []), [at, p95]]),
  };
}

const isLong = (from, to) => to - from > 3 * HOUR_STEP;

// A value for each two samples; a long step, such as that of a hidden page, is level. Counters that fell leave a gap.
function steps(samples, value) {
  return samples.slice(1).flatMap((sample, i) => {
    const before = samples[i];
    const found = sample[1] < before[1] ? null : value(sample.map((later, j) => later - before[j]));
    return isLong(before[0], sample[0]) ? [[before[0], found], [sample[0], found]] : [[sample[0], found]];
  });
}

// The mean time of a request since the server started, in microseconds.
export function meanTime({ success }) {
  return success.count ? success.ns / success.count / 1000 : null;
}

// ---- across reloads of the page, in this tab alone

export function keep() {
  try {
    sessionStorage.setItem(STORE, JSON.stringify([...histories].map(([key, { hour }]) => [key, hour])));
  } catch { /* the browser keeps less than this: the next page starts anew */ }
}

export function restore() {
  try {
    for (const [key, hour] of JSON.parse(sessionStorage.getItem(STORE)) || []) {
      histories.set(key, { minute: [], hour: hour.filter(([at]) => at > Date.now() - HOUR) });
    }
  } catch { /* nothing that this version wrote */ }
}
