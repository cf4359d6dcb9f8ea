// Elements, tables, and numbers as text.

const SVG = 'http://www.w3.org/2000/svg';

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== 'list') made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function drawing(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const number = (value) => (value === null || Number.isNaN(value) ? '–'
  : value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en')
    : value >= 10 ? value.toFixed(1) : value.toFixed(2));
export const micros = (value) => (value === null ? '–' : value < 1000 ? `${Math.round(value)} µs`
  : value < 1e6 ? `${(value / 1e3).toFixed(value < 1e4 ? 1 : 0)} ms` : `${(value / 1e6).toFixed(1)} s`);
export const bytes = (value) => (value < 1e9 ? `${Math.round(value / 1e6)} MB` : `${(value / 1e9).toFixed(1)} GB`);
export const percent = (share) => `${Math.round(share * 100)} %`;

// Entries are [name, value, more text, share of a bound]; the last two may be missing.
export function figures(list, entries) {
  list.replaceChildren(...entries.map(([name, value, more, share]) => element('div', {},
    element('dt', { textContent: name }),
    element('dd', {}, value, more ? element('small', { textContent: ` ${more}` }) : null,
      share === undefined ? null : element('meter', {
        value: Number.isFinite(share) ? share : 0, max: 1, high: 0.8, optimum: 0, 'aria-label': `${name}: ${value}` })))));
}

export function table(heads, lines) {
  return element('div', { className: 'scroll' }, element('table', {},
    element('thead', {}, element('tr', {}, ...heads.map((head) => element('th', { scope: 'col', textContent: head })))),
    element('tbody', {}, ...lines.map(([first, ...rest]) => element('tr', {},
      element('th', { scope: 'row', textContent: first }), ...rest.map((cell) => element('td', {}, cell)))))));
}

// A table of entries that end in a score, with bars up to the largest one, at least `least`.
export function scores(heads, entries, least = 1e-9) {
  const values = entries.map((entry) => Number(entry.at(-1)) || 0);
  const most = Math.max(least, ...values);
  return table([...heads, 'Score', ''], entries.map((entry, i) => [...entry,
    element('meter', { value: Math.max(0, values[i]), max: most, 'aria-label': `${entry.at(-1)} of ${most}` })]));
}
