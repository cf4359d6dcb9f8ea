// An ensemble as a diagram: from the request by its steps to the answer, each step with its share of their time.

import { drawing, micros, percent } from './page.js';

const [WIDTH, HEIGHT, APART, BETWEEN, DETOUR] = [190, 46, 22, 44, 40];

// The nodes of an ensemble and the tensors that go from one to another: steps lie below all whose tensors they take.
export function graphOf(config) {
  const steps = config.ensemble_scheduling.step.map((step, i) => ({
    title: step.model_name, step: i, takes: Object.values(step.input_map), gives: Object.values(step.output_map) }));
  const request = { title: 'Request', takes: [], gives: config.input.map(({ name }) => name) };
  const answer = { title: 'Answer', takes: config.output.map(({ name }) => name), gives: [] };
  const nodes = [request, ...steps, answer];
  const makers = new Map(nodes.flatMap((node) => node.gives.map((tensor) => [tensor, node])));
  nodes.forEach((node) => { node.level = 0; });
  for (let i = 0; i < nodes.length; i += 1) {
    for (const node of [...steps, answer]) node.level = 1 + Math.max(0, ...node.takes.map((tensor) => makers.get(tensor)?.level ?? 0));
  }
  answer.level = Math.max(...nodes.map(({ level }) => level), ...steps.map(({ level }) => level + 1));
  const edges = nodes.flatMap((to) => {
    const from = Map.groupBy(to.takes.filter((tensor) => makers.has(tensor)), (tensor) => makers.get(tensor));
    return [...from].map(([maker, tensors]) => ({ from: maker, to, tensors }));
  });
  return { nodes, edges };
}

// `times` are the mean microseconds of the steps, in their order; null without a request.
export function ensembleDiagram(config, times, linkOf) {
  const { nodes, edges } = graphOf(config);
  const levels = [...Map.groupBy(nodes, ({ level }) => level)].sort((a, b) => a[0] - b[0]);
  const columns = Math.max(...levels.map(([, row]) => row.length));
  const width = columns * (WIDTH + APART);
  const hasDetour = edges.some(({ from, to }) => to.level - from.level > 1);
  for (const [level, row] of levels) {
    row.forEach((node, i) => {
      node.x = width / 2 + (i - row.length / 2) * (WIDTH + APART) + APART / 2;
      node.y = level * (HEIGHT + BETWEEN) + 1;
    });
  }
  const total = times.reduce((all, time) => all + (time ?? 0), 0);
  const made = nodes.map((node) => (node.step === undefined ? nodeDrawing(node)
    : drawing('a', { href: linkOf(node.title) }, nodeDrawing(node, times[node.step], total))));
  const height = (levels.at(-1)[0] + 1) * (HEIGHT + BETWEEN) - BETWEEN + 2;
  const told = nodes.filter(({ step }) => step !== undefined).map(({ title, step }) => `${title} ${timeText(times[step], total)}`).join(', ');
  const full = width + (hasDetour ? DETOUR : 0);
  return drawing('svg', { viewBox: `0 0 ${full} ${height}`, width: full, class: 'ensemble', role: 'group', 'aria-label': `Steps: ${told}` },
    ...edges.map((edge) => edgeDrawing(edge, width)), ...made);
}

const timeText = (time, total) => (time === null || time === undefined ? 'no requests yet' : `${total ? percent(time / total) : '–'} · ${micros(time)}`);
const short = (text) => (text.length > 21 ? `${text.slice(0, 11)}…${text.slice(-9)}` : text);

function text(content, attributes) {
  const made = drawing('text', attributes);
  made.textContent = content;
  return made;
}

function nodeDrawing({ title, x, y, step }, time, total) {
  const group = drawing('g', { class: step === undefined ? 'node end' : 'node' },
    drawing('rect', { x, y, width: WIDTH, height: HEIGHT, rx: 5 }),
    text(short(title), { class: 'name', x: x + WIDTH / 2, y: y + (step === undefined ? 28 : 19), 'text-anchor': 'middle' }));
  if (step === undefined) return group;
  const hover = drawing('title', {});
  hover.textContent = title;
  const share = total && time ? time / total : 0;
  group.append(hover, text(timeText(time, total), { x: x + WIDTH / 2, y: y + 34, 'text-anchor': 'middle' }),
    drawing('rect', { class: 'bar', x, y: y + HEIGHT - 5, width: share * WIDTH, height: 5 }));
  return group;
}

// Past other steps, a tensor goes round them.
function edgeDrawing({ from, to, tensors }, width) {
  const [x1, y1, x2, y2] = [from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2, to.y];
  const isFar = to.level - from.level > 1;
  const side = width + DETOUR - 6;
  const d = isFar ? `M${x1} ${y1}C${x1} ${y1 + BETWEEN} ${side} ${y1} ${side} ${y1 + BETWEEN}V${y2 - BETWEEN}C${side} ${y2 - 6} ${x2} ${y2 - BETWEEN} ${x2} ${y2 - 6}`
    : `M${x1} ${y1}C${x1} ${y1 + BETWEEN / 2} ${x2} ${y2 - BETWEEN / 2} ${x2} ${y2 - 6}`;
  const at = isFar ? { x: side - 4, y: (y1 + y2) / 2, 'text-anchor': 'end' } : { x: (x1 + x2) / 2 + 6, y: (y1 + y2) / 2 + 4 };
  return drawing('g', { class: 'edge' }, drawing('path', { d }), drawing('path', { class: 'tip', d: `M${x2 - 4} ${y2 - 7}h8l-4 7z` }),
    text(short(tensors.join(', ')), at));
}
