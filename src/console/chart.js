// Charts as SVG.

import { HOUR, MINUTE } from './metrics.js';
import { drawing, element, number } from './page.js';

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [460, 150, 58, 12, 10, 24];

const label = (text, attributes) => {
  const made = drawing('text', attributes);
  made.textContent = text;
  return made;
};

// The next 1, 2 or 5 with zeros.
function roundUp(value) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * ten).find((most) => most >= value * 0.999);
}

// Lines over the last hour; `series` are [name, [[time, value], …]], `text` writes a value.
export function hourChart(title, series, text, least) {
  const now = Date.now();
  const values = series.flatMap(([, points]) => points.map(([, value]) => value ?? 0));
  const most = roundUp(Math.max(least, ...values));
  const x = (at) => LEFT + (1 - (now - at) / HOUR) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
  const levels = [0, most / 2, most].flatMap((value) => [
    drawing('line', { class: 'grid', x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    label(text(value), { class: 'axis-y', x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end' })]);
  const times = [60, 45, 30, 15, 0].flatMap((minutes) => {
    const at = x(now - minutes * MINUTE);
    return [drawing('line', { class: 'grid', x1: at, x2: at, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }),
      label(minutes ? `−${minutes} min` : 'now', { class: 'axis-x', x: at, y: HEIGHT - 6, 'text-anchor': minutes ? 'middle' : 'end' })];
  });
  const lines = series.map(([, points], i) => drawing('path', { class: `line line-${i}`, d: pathOf(points, x, y) }));
  const told = series.map(([name, points]) => `${name} ${text(points.at(-1)?.[1] ?? null)}`).join(', ');
  return element('figure', {}, element('figcaption', {}, element('b', { textContent: title }),
    ...series.map(([name, points], i) => element('span', { className: `key key-${i}`, textContent: `${name} ${text(points.at(-1)?.[1] ?? null)}` }))),
  drawing('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: 'chart', role: 'img', 'aria-label': `${title} over the last hour, up to ${text(most)}; now ${told}` },
    ...levels, ...times, ...lines));
}

// Moves over gaps. A value alone is a dot, which the round ends of lines draw.
function pathOf(points, x, y) {
  let isDrawn = false;
  return points.map(([at, value]) => {
    const step = value === null ? '' : `${isDrawn ? 'L' : 'M'}${x(at).toFixed(1)} ${y(value).toFixed(1)}${isDrawn ? '' : 'h0'}`;
    isDrawn = value !== null;
    return step;
  }).join('');
}

export function sparkline(points, name) {
  const most = Math.max(1, ...points.map(([, value]) => value ?? 0));
  const now = Date.now();
  const d = pathOf(points, (at) => 120 - (now - at) / MINUTE * 118, (value) => 23 - value / most * 20);
  return drawing('svg', { width: 122, height: 26, role: 'img', 'aria-label': `${name}: at most ${number(most)} requests a second` },
    drawing('path', { class: 'line line-0', d }));
}

export function bars(place, entries, what) {
  const most = Math.max(...entries.map(([, count]) => count), 0);
  if (!most) {
    place.replaceChildren(element('p', { className: 'note', textContent: `No ${what} in the last minute.` }));
    return;
  }
  const shown = entries.filter(([, count]) => count > 0);
  place.replaceChildren(drawing('svg', {
    viewBox: `0 0 320 ${shown.length * 22}`, class: 'bars', role: 'img',
    'aria-label': shown.map(([name, count]) => `${name}: ${number(count)}`).join(', '),
  }, ...shown.flatMap(([name, count], i) => [
    label(name, { x: 0, y: i * 22 + 14 }),
    drawing('rect', { class: 'bar', x: 140, y: i * 22 + 3, width: Math.max(1, count / most * 120), height: 14 }),
    label(number(count), { x: 148 + count / most * 120, y: i * 22 + 14 })])));
}
