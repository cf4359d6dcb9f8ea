// A picture file as numbers of an input.

import { element, number } from './page.js';

const SIDE = 224; // sides that are free, before there is a picture
const NUMBERS_MAX = 1000000; // a larger picture is made smaller if the sides are free
const GREY = 'rgb(114, 114, 114)'; // of the borders of a letterbox, as detectors are trained
const MEAN = [0.485, 0.456, 0.406];
const DEVIATION = [0.229, 0.224, 0.225];

// From 0 to 1 to the model's numbers; the channel counts from red.
const SCALES = {
  '0 to 1': (share) => share,
  '0 to 255': (share) => share * 255,
  '0 to 16': (share) => share * 16,
  '-1 to 1': (share) => share * 2 - 1,
  'ImageNet mean and std': (share, channel) => (share - MEAN[channel]) / DEVIATION[channel],
};
const FITS = {
  stretch: 'stretched',
  crop: 'cropped',
  letterbox: 'with grey borders',
  own: 'in its own size',
};

// The place of a picture in a shape of an input, sizes below 1 being free: the axes of its sides, its channels, and the flag
// that these come first. Null if the shape is of no picture.
export function layoutOf(shape, datatype) {
  if (!/^(FP|U?INT8)/.test(datatype)) return null;
  const rank = shape.length;
  const isSide = (size) => size < 1 || size > 4;
  const isColour = (size) => size === 1 || size === 3;
  const [a, b, c] = shape.slice(-3);
  if (rank >= 3 && isColour(c) && isSide(a) && isSide(b)) {
    return { height: rank - 3, width: rank - 2, channels: c, isFirst: false, isFree: a < 1 && b < 1 };
  }
  if (rank >= 3 && isColour(a) && isSide(b) && isSide(c)) {
    return { height: rank - 2, width: rank - 1, channels: a, isFirst: true, isFree: b < 1 && c < 1 };
  }
  if (b === c && b >= 8 && shape.slice(0, -2).every((size) => size <= 1)) {
    return { height: rank - 2, width: rank - 1, channels: 1, isFirst: true, isFree: false };
  }
  const side = Math.sqrt(shape.at(-1));
  const isRow = Number.isInteger(side) && side >= 8 && shape.slice(0, -1).every((size) => size <= 1);
  return isRow ? { side, channels: 1, isFirst: false, isFree: false } : null;
}

// The shape that the form starts with.
export function startShape(shape, datatype) {
  const layout = layoutOf(shape, datatype);
  return shape.map((size, axis) => (size > 0 ? size : axis === layout?.height || axis === layout?.width ? SIDE : 1));
}

// The chooser of a picture for an input; `getShape` and `setShape` reach the field of the shape, `setValues` takes the numbers.
export function pictureChooser(input, getShape, setShape, setValues) {
  const layout = layoutOf(input.shape, input.datatype);
  const isWhole = /INT/.test(input.datatype);
  const choice = (name, entries) => element('select', { 'aria-label': `${name} of ${input.name}` },
    ...entries.map(([value, text]) => element('option', { value, textContent: text })));
  const fit = choice('Fit', Object.entries(FITS).filter(([name]) => layout.isFree || name !== 'own'));
  const scale = choice('Numbers', Object.keys(SCALES).filter((name) => !isWhole || name.startsWith('0 to')).map((name) => [name, name]));
  const order = choice('Order', [['RGB', 'RGB'], ['BGR', 'BGR']]);
  const inverse = element('input', { type: 'checkbox' });
  const file = element('input', { type: 'file', accept: 'image/*', 'aria-label': `Picture for ${input.name}` });
  const preview = element('p', { className: 'preview' });
  if (isWhole) scale.value = '0 to 255';
  if (layout.isFree) fit.value = 'own';
  const draw = async () => {
    if (!file.files[0]) return;
    let bitmap;
    try {
      bitmap = await createImageBitmap(file.files[0]);
    } catch {
      preview.replaceChildren(element('span', { className: 'bad', textContent: 'The browser cannot read this as a picture.' }));
      return;
    }
    const shape = getShape();
    const sides = fit.value === 'own' ? ownSides(bitmap, layout.channels) : sidesOf(shape, layout);
    const canvas = drawn(bitmap, ...sides, fit.value);
    if (layout.side === undefined) [shape[layout.height], shape[layout.width]] = sides;
    setShape(shape);
    setValues(numbersOf(canvas, layout, { scale: SCALES[scale.value], isBgr: order.value === 'BGR', isInverse: inverse.checked, isWhole }));
    canvas.className = inverse.checked ? 'inverse' : '';
    preview.replaceChildren(canvas, element('small', {
      textContent: `${number(sides[1])} × ${number(sides[0])} of ${number(bitmap.width)} × ${number(bitmap.height)} pixels` }));
  };
  for (const control of [file, fit, scale, order, inverse]) control.onchange = draw;
  const made = element('div', {}, element('p', {}, element('label', {}, 'Picture ', file), fit), element('p', {},
    element('label', {}, 'as numbers ', scale), layout.channels === 3 ? order : null, element('label', {}, inverse, ' dark is high')), preview);
  // Sides that are typed are those of the picture.
  made.redraw = () => {
    if (fit.value === 'own') fit.value = 'stretch';
    draw();
  };
  return made;
}

const sidesOf = (shape, { side, height, width }) => (side ? [side, side] : [shape[height] || 1, shape[width] || 1]);

function ownSides({ width, height }, channels) {
  const factor = Math.min(1, Math.sqrt(NUMBERS_MAX / (width * height * channels)));
  return [height, width].map((size) => Math.max(1, Math.floor(size * factor)));
}

function drawn(bitmap, height, width, fit) {
  const canvas = element('canvas', { width, height });
  const context = canvas.getContext('2d', { willReadFrequently: true });
  const [across, down] = [width / bitmap.width, height / bitmap.height];
  const factor = fit === 'crop' ? Math.max(across, down) : Math.min(across, down);
  const [w, h] = fit === 'crop' || fit === 'letterbox' ? [bitmap.width * factor, bitmap.height * factor] : [width, height];
  if (fit === 'letterbox') {
    context.fillStyle = GREY;
    context.fillRect(0, 0, width, height);
  }
  context.drawImage(bitmap, (width - w) / 2, (height - h) / 2, w, h);
  return canvas;
}

function numbersOf(canvas, { channels, isFirst }, { scale, isBgr, isInverse, isWhole }) {
  const { width, height } = canvas;
  const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
  const value = (pixel, channel) => {
    const at = pixel * 4;
    const colour = isBgr && channels === 3 ? 2 - channel : channel;
    const grey = pixels[at] * 0.299 + pixels[at + 1] * 0.587 + pixels[at + 2] * 0.114;
    const share = (channels === 1 ? grey : pixels[at + colour]) / 255;
    const scaled = scale(isInverse ? 1 - share : share, colour);
    return isWhole ? Math.round(scaled) : Number(scaled.toFixed(4));
  };
  const area = width * height;
  return Array.from({ length: area * channels }, (_, i) => (
    isFirst ? value(i % area, Math.floor(i / area)) : value(Math.floor(i / channels), i % channels)));
}
