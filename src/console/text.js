// Models of texts: a form of texts in place of tensors, and answers as people read them. The page loads this file with the
// first such model.

import { element, number, scores, table } from './page.js';
import { askJson } from './server.js';

const FIRST = 6; // numbers that are shown of a vector
const SHOWN_MAX = 20; // labels or tokens that are shown of a text
const COSINES_MAX = 32; // texts in the table of cosines
const TITLE_MAX = 80; // characters of a text in a title

// ---- the kinds of models

// The inputs of a kind of model, and outputs that it has. With `hasRows`, a request takes several texts. The first that fits counts.
const KINDS = [
  { inputs: ['question', 'context'], outputs: ['answer', 'score', 'start', 'end'], hasRows: true, form: questionForm, show: showAnswer },
  { inputs: ['query', 'text'], outputs: ['score'], hasRows: true, form: rankForm, show: showRanks },
  { inputs: ['text', 'labels'], outputs: ['label', 'score'], hasRows: false, form: labelForm, show: showLabels },
  { inputs: ['text'], outputs: ['embedding'], hasRows: true, form: textsForm, show: showVectors },
  { inputs: ['text'], outputs: ['index', 'value', 'count'], hasRows: true, form: textsForm, show: showTokens },
  { inputs: ['text'], outputs: ['label', 'score', 'start', 'end', 'count'], hasRows: true, form: textsForm, show: showSpans },
  { inputs: ['text'], outputs: ['label', 'score'], hasRows: true, form: textsForm, show: showLabels },
  { inputs: ['text'], outputs: ['score'], hasRows: true, form: textsForm, show: showNumbers },
];
// Inputs that such models do without; the configuration, which says so, may be restricted.
const OPTIONAL = ['prompt_name', 'truncation', 'token_ids', 'multi_label', 'hypothesis_template'];

// The form of a model: `parts` are elements with `read()`, an input of a request or null, and `show(inputs, outputs)` makes the
// elements of an answer. Null for a model of another kind.
export function textForm(model, changed) {
  const { inputs, outputs } = model.metadata;
  const free = new Set([...OPTIONAL, ...(model.config.input || []).filter(({ optional }) => optional).map(({ name }) => name)]);
  const needed = inputs.filter(({ name }) => !free.has(name));
  const rank = ({ hasRows }) => (hasRows ? 2 : 1);
  const kind = KINDS.find((one) => needed.length === one.inputs.length
    && needed.every(({ name, datatype, shape }) => one.inputs.includes(name) && datatype === 'BYTES' && shape.length === rank(one))
    && one.outputs.every((name) => outputs.some((output) => output.name === name)));
  if (!kind) return null;
  const has = (name) => inputs.some((input) => input.name === name);
  const most = kind.hasRows ? model.config.max_batch_size || Infinity : Infinity;
  return {
    parts: kind.form({ has, changed, most }),
    show: async (sent, answered) => kind.show({
      asked: Object.fromEntries(sent.map(({ name, data }) => [name, data])),
      rows: Object.fromEntries(answered.map((output) => [output.name, rowsOf(output, kind.hasRows)])),
      model,
    }),
  };
}

// The values of each text.
function rowsOf({ shape, data }, hasRows) {
  if (!hasRows) return [data];
  const width = shape.slice(1).reduce((all, size) => all * size, 1);
  return Array.from({ length: shape[0] }, (_, i) => data.slice(i * width, (i + 1) * width));
}

// ---- forms

// A field with its label; `read` makes an input of it.
function part(label, field, read, note = null) {
  const made = element('p', { className: 'texts' }, element('label', {}, label, ' ', field), note);
  made.read = read;
  return made;
}

const line = (changed, more = {}) => element('input', { ...more, oninput: changed });
const area = (changed, rows = 4) => element('textarea', { rows, oninput: changed });
const column = (name, values) => ({ name, datatype: 'BYTES', shape: [values.length, 1], data: values });
const list = (name, values, datatype = 'BYTES') => ({ name, datatype, shape: [values.length], data: values });

// Texts of a field, one on each line; a request has at least one.
function linesOf(field) {
  const lines = field.value.split('\n').filter((text) => text.trim());
  return lines.length ? lines : [''];
}

// A field of several texts, with their count.
function textsPart({ changed, most }) {
  const note = element('small', { 'aria-live': 'polite' });
  const field = area(() => {
    const count = linesOf(field).length;
    note.textContent = `${number(count)} ${count === 1 ? 'text' : 'texts'}${count > most ? `: a request takes ${number(most)}` : ''}`;
    note.className = count > most ? 'bad' : '';
    changed();
  });
  const texts = () => linesOf(field);
  return { texts, made: part('Texts, one on each line', field, () => column('text', texts()), note) };
}

function textsForm({ has, changed, most }) {
  const { texts, made } = textsPart({ changed, most });
  if (!has('prompt_name')) return [made];
  const name = line(changed, { placeholder: 'the default one', autocomplete: 'off', spellcheck: false });
  return [made, part('Prompt, by its name', name, () => (name.value ? column('prompt_name', texts().map(() => name.value)) : null))];
}

function rankForm({ changed, most }) {
  const query = line(changed);
  const { texts, made } = textsPart({ changed, most });
  return [part('Query', query, () => column('query', texts().map(() => query.value))), made];
}

function questionForm({ changed }) {
  const [question, context] = [line(changed), area(changed)];
  return [part('Question', question, () => column('question', [question.value])), part('Context', context, () => column('context', [context.value]))];
}

function labelForm({ has, changed }) {
  const [text, labels] = [area(changed), area(changed, 3)];
  const several = element('input', { type: 'checkbox', onchange: changed });
  const template = line(changed, { placeholder: 'This example is {}.' });
  const parts = [part('Text', text, () => list('text', [text.value])), part('Labels, one on each line', labels, () => list('labels', linesOf(labels)))];
  if (has('multi_label')) parts.push(part('Several labels may hold', several, () => (several.checked ? list('multi_label', [true], 'BOOL') : null)));
  if (has('hypothesis_template')) parts.push(part('Sentence of a label', template, () => (template.value ? list('hypothesis_template', [template.value]) : null)));
  return parts;
}

// ---- answers

const short = (text) => (text.length > TITLE_MAX ? `${text.slice(0, TITLE_MAX)} …` : text || '(empty)');
const more = (count, what) => (count > 0 ? element('p', { className: 'note', textContent: `and ${number(count)} more ${what}` }) : null);
const digits = (value, count) => (Number.isFinite(Number(value)) ? Number(value).toFixed(count) : value);

// The first of a text's entries, [name, score], under the text. Bars end at the largest score, or at `least`.
function best(text, head, entries, what, least) {
  const shown = entries.slice(0, SHOWN_MAX);
  return element('div', {}, element('h4', { textContent: short(text) }), scores([head], shown, least), ...[more(entries.length - shown.length, what)].filter(Boolean));
}

function showLabels({ asked, rows }) {
  return asked.text.map((text, i) => best(text, 'Label', rows.label[i].map((label, k) => [label, digits(rows.score[i][k], 4)]), 'labels', 1));
}

function showNumbers({ asked, rows }) {
  return [scores(['Text'], asked.text.map((text, i) => [short(text), rows.score[i].map((score) => digits(score, 4)).join(' ')]), 1)];
}

function showRanks({ asked, rows }) {
  const ranked = asked.text.map((text, i) => [text, rows.score[i][0]]).sort((a, b) => b[1] - a[1]);
  return [scores(['Text'], ranked.map(([text, score], i) => [`${i + 1}: ${text}`, digits(score, 4)]), 1)];
}

function showVectors({ asked, rows }) {
  const counts = rows.token_count;
  const vectors = rows.embedding.map((row) => row.map(Number));
  const heads = ['Text', ...(counts ? ['Tokens'] : []), 'Length', `First of ${number(vectors[0].length)} numbers`];
  const lines = asked.text.map((text, i) => [`${i + 1}: ${short(text)}`, ...(counts ? [number(counts[i][0])] : []), digits(Math.hypot(...vectors[i]), 3),
    vectors[i].slice(0, FIRST).map((value) => digits(value, 4)).join(' ')]);
  const shown = [element('h4', { textContent: `${number(vectors[0].length)} dimensions` }), table(heads, lines)];
  if (vectors.length > 1) shown.push(element('h4', { textContent: 'Cosines between the texts' }), cosines(asked.text, vectors.slice(0, COSINES_MAX)));
  return [...shown, more(vectors.length - COSINES_MAX, 'texts without cosines')].filter(Boolean);
}

function cosines(texts, vectors) {
  const lengths = vectors.map((vector) => Math.hypot(...vector));
  const cosine = (i, k) => vectors[i].reduce((sum, value, at) => sum + value * vectors[k][at], 0) / lengths[i] / lengths[k];
  return table(['Text', ...vectors.map((_, i) => `${i + 1}`)], vectors.map((_, i) => [`${i + 1}: ${short(texts[i])}`,
    ...vectors.map((_, k) => { const value = cosine(i, k); return Number.isFinite(value) ? value.toFixed(3) : '–'; })]));
}

// The heaviest tokens, by the tokenizer of the model; by their numbers if it does not say.
async function showTokens({ asked, rows, model }) {
  const texts = asked.text.map((_, i) => rows.index[i].slice(0, rows.count[i][0]).map((id, k) => [id, rows.value[i][k]])
    .sort((a, b) => b[1] - a[1]));
  const ids = [...new Set(texts.flatMap((entries) => entries.slice(0, SHOWN_MAX).map(([id]) => id)))];
  const names = await namesOf(model, ids).catch(() => new Map());
  return texts.map((entries, i) => best(asked.text[i], 'Token', entries.map(([id, weight]) => [names.get(id) || `${id}`, digits(weight, 4)]), 'tokens'));
}

async function namesOf({ name }, ids) {
  if (!ids.length) return new Map();
  const body = JSON.stringify({ ids: ids.map((id) => [id]), skip_special_tokens: false });
  const names = await askJson(`/models/${encodeURIComponent(name)}/decode`, { method: 'POST', body });
  return new Map(ids.map((id, i) => [id, names[i]]));
}

// Places in a text are counted in characters of Unicode.
function marked(text, spans) {
  const letters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const [start, end, label] of spans) {
    if (start < at) continue;
    parts.push(letters.slice(at, start).join(''), element('mark', {}, letters.slice(start, end).join(''), ' ', element('small', { textContent: label })));
    at = end;
  }
  return element('p', { className: 'marked' }, ...parts, letters.slice(at).join(''));
}

function showSpans({ asked, rows }) {
  return asked.text.map((text, i) => marked(text, rows.label[i].slice(0, rows.count[i][0]).map((label, k) => (
    [rows.start[i][k], rows.end[i][k], `${label} ${digits(rows.score[i][k], 3)}`]))));
}

function showAnswer({ asked, rows }) {
  const [answer, score] = [rows.answer[0][0], digits(rows.score[0][0], 4)];
  if (!answer) return [element('p', { textContent: `No answer in the context (${score})` })];
  return [element('p', {}, element('strong', { textContent: answer }), ` ${score}`),
    marked(asked.context[0], [[rows.start[0][0], rows.end[0][0], 'answer']])];
}
