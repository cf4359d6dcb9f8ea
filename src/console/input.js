// The form of one input: its shape and its values, typed, pasted, filled in, or from files.

import { element, number } from './page.js';
import { layoutOf, pictureChooser, startShape } from './picture.js';

const VALUES_MAX = 1000000; // numbers that the buttons fill one input with
const SHOWN_MAX = 10000; // numbers that a text field shows; more are kept beside it

// ---- from text

export const readShape = (text) => text.split(/[\s,x×[\]]+/).filter(Boolean).map(Number);

// Lists may have brackets, as Python, numpy and JSON print them.
export function readValues(datatype, text) {
  if (datatype === 'BYTES') return readTexts(text);
  const words = text.split(/[\s,;[\]()]+/).filter(Boolean);
  if (datatype === 'BOOL') return words.map((word) => /^(true|1)$/i.test(word));
  // Beyond what a number of JavaScript holds, a whole number is kept as it was typed.
  return words.map((word) => (/^-?\d{16,}$/.test(word) ? JSON.rawJSON?.(word) ?? Number(word) : Number(word)));
}

// A list of JSON, or a text on each line.
function readTexts(text) {
  const list = readList(text);
  const texts = Array.isArray(list) ? list.flat(Infinity) : [];
  return texts.length && texts.every((value) => typeof value === 'string') ? texts : text.split('\n');
}

function readList(text) {
  if (!/^\s*[[(]/.test(text)) return null;
  const json = text.replaceAll('(', '[').replaceAll(')', ']').replace(/,(?=\s*\])/g, '')
    .replace(/([^\s,[])\s+(?=[^\s,\]])/g, '$1,').replace(/\bTrue\b/g, 'true').replace(/\bFalse\b/g, 'false')
    .replace(/([\d])\.(?!\d)/g, '$1');
  for (const form of [text, json]) {
    try { return JSON.parse(form); } catch { /* not in this form */ }
  }
  return null;
}

// The shape of a list by its brackets; null without brackets, or if its rows differ in length.
export function nestedShape(text) {
  const sizes = (list) => {
    if (!Array.isArray(list)) return [];
    const [first, ...others] = list.map(sizes);
    return others.every((other) => other && first && String(other) === String(first)) && first !== null ? [list.length, ...(first || [])] : null;
  };
  const list = readList(text);
  return list === null ? null : sizes(list);
}

// The shape of `count` values for an input whose sizes below 1 are free: that of the brackets if it fits, else the last free
// side takes what the fixed ones leave. Null if no shape fits.
export function shapeFor(free, count, nested) {
  const padded = nested && [...Array(Math.max(0, free.length - nested.length)).fill(1), ...nested];
  if (padded?.length === free.length && padded.every((size, i) => free[i] < 1 || free[i] === size)) return padded;
  const last = free.findLastIndex((size) => size < 1);
  const rest = count / free.reduce((all, size) => all * (size < 1 ? 1 : size), 1);
  if (last < 0 || rest < 1 || !Number.isInteger(rest)) return null;
  return free.map((size, i) => (size > 0 ? size : i === last ? rest : 1));
}

// ---- the form

// `changed` is called after each change; `form.read()` is the input of a request, with `files` in place of `data` if files
// were chosen.
export function inputForm(input, changed) {
  const { name, datatype } = input;
  const isText = datatype === 'BYTES';
  const note = element('small', { 'aria-live': 'polite' });
  let held = null; // values that are too many for the text field
  let files = []; // the contents of files: {name, bytes}
  let isShapeTyped = false;
  const area = element('textarea', { spellcheck: false, 'aria-label': `Values of ${name}` });
  const sizes = element('input', { value: startShape(input.shape, datatype).join(' '), size: 14, 'aria-label': `Shape of ${name}` });
  const setShape = (shape) => { if (shape) sizes.value = shape.join(' '); };
  const values = () => held || readValues(datatype, area.value);
  const update = () => {
    const [has, takes] = [files.length || values().length, count(sizes.value)];
    note.className = has === takes ? '' : 'bad';
    note.textContent = `${number(has)} ${has === 1 ? 'value' : 'values'}${has === takes ? '' : `, but the shape takes ${number(takes)}`}. ${hintOf(isText)}`;
    changed();
  };
  const clear = () => { held = null; area.placeholder = ''; files = []; };
  const set = (list) => {
    const text = list.join(isText ? '\n' : ' ');
    clear();
    held = list.length > SHOWN_MAX ? readValues(datatype, text) : null;
    area.value = held ? '' : text;
    area.placeholder = held ? `${number(held.length)} values: ${held.slice(0, 8).join(isText ? ', ' : ' ')} …` : '';
    update();
  };
  const picture = layoutOf(input.shape, datatype) ? pictureChooser(input, () => readShape(sizes.value), setShape, set) : null;
  const fill = (value) => set(Array.from({ length: Math.min(count(sizes.value), VALUES_MAX) }, value));
  const button = (text, value) => element('button', { type: 'button', textContent: text, onclick: () => fill(value) });
  area.oninput = () => {
    clear();
    if (!isShapeTyped) setShape(shapeFor(input.shape, values().length, nestedShape(area.value)));
    update();
  };
  sizes.oninput = () => { isShapeTyped = sizes.value.trim() !== ''; update(); };
  sizes.onchange = () => picture?.redraw();
  const take = (chosen) => {
    clear();
    files = chosen;
    area.value = '';
    area.placeholder = files.map((file) => `${file.name}: ${number(file.bytes.length)} bytes`).join('\n');
    if (!isShapeTyped) setShape(shapeFor(input.shape, files.length, null));
    update();
  };
  const form = element('fieldset', {},
    element('legend', { textContent: `${name} · ${datatype} [${input.shape.map((size) => (size < 1 ? 'any' : size)).join(', ')}]` }),
    element('p', {}, element('label', {}, 'Shape ', sizes), button(isText ? 'Empty' : 'Zeros', zeroOf(datatype)), button('Random', someOf(datatype))),
    picture, isText ? fileChooser(name, take) : null, area, note);
  form.read = () => ({ name, datatype, shape: readShape(sizes.value), ...(files.length ? { files } : { data: values() }) });
  fill(zeroOf(datatype));
  return form;
}

const count = (text) => readShape(text).reduce((all, size) => all * size, 1);
const hintOf = (isText) => (isText ? 'One text on each line, or a list of JSON.' : 'Blanks or commas between them; brackets are allowed.');

const zeroOf = (datatype) => () => ({ BYTES: '', BOOL: 'false' }[datatype] ?? '0');

function someOf(datatype) {
  if (datatype === 'BYTES') return (_, i) => `text ${i}`;
  if (datatype === 'BOOL') return () => String(Math.random() < 0.5);
  return /INT/.test(datatype) ? () => String(Math.floor(Math.random() * 100)) : () => Math.random().toFixed(3);
}

// Each file is one value, byte by byte.
function fileChooser(name, take) {
  const file = element('input', { type: 'file', multiple: true, 'aria-label': `Files for ${name}` });
  file.onchange = async () => {
    take(await Promise.all([...file.files].map(async (chosen) => ({ name: chosen.name, bytes: new Uint8Array(await chosen.arrayBuffer()) }))));
  };
  return element('p', {}, element('label', {}, 'Files ', file), element('small', { textContent: 'in place of the text, one value each' }));
}

// ---- the body of a request

// The inputs as JSON, and the values from files, which follow it as they are: each after its size in four bytes.
export function bodyOf(inputs, outputs) {
  const tail = [];
  const described = inputs.map(({ files, ...input }) => {
    if (!files) return input;
    files.forEach((file) => tail.push({ size: sizeBytes(file.bytes.length), ...file }));
    const size = files.reduce((all, { bytes }) => all + 4 + bytes.length, 0);
    return { ...input, parameters: { binary_data_size: size } };
  });
  return { json: JSON.stringify({ inputs: described, ...(outputs ? { outputs } : {}) }), tail };
}

function sizeBytes(size) {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, size, true);
  return new Uint8Array(view.buffer);
}
