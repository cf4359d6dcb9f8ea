// Tries the console in a real browser, over playwright-core: node console.mjs URL CHROMIUM FOLDER REQUEST.json KEYS KEY
// URL is the metrics port of a server of examples/models and examples/ensemble, of models that copy their inputs (one with a
// name like HTML, texts; `large`, of a picture's size; `image`, of free sides; `list`, of one free axis; `copy_1` to `copy_36`),
// and of `broken` and `cut_short`, which do not load. FOLDER takes the screenshots. KEYS is the metrics port of a server that
// asks for KEY.

import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { check, end, start } from './browser.mjs';

const [url, executablePath, folder, request, keysUrl, key] = process.argv.slice(2);
const { context, page, shows } = await start(executablePath);
await page.goto(url);

const rowNames = () => page.$$eval('#model-rows th', (cells) => cells.map((cell) => cell.textContent.trim()));
const shapeIs = (input, shape) => page.waitForFunction(([name, wanted]) =>
  document.querySelector(`[aria-label="Shape of ${name}"]`)?.value === wanted, [input, shape]);
const setChoice = (name, value) => page.selectOption(`[aria-label="${name}"]`, value);
const typeShape = async (text) => {
  await page.fill('[aria-label="Shape of x"]', text);
  await page.dispatchEvent('[aria-label="Shape of x"]', 'change');
};
const valuesAre = (text) => page.waitForFunction((wanted) => document.querySelector('#inputs textarea').value === wanted, text);

await page.waitForFunction(() => document.querySelectorAll('#model-rows tr').length > 0);
const names = await rowNames();
check(names.includes('digits') && names.includes('identity'), `a row for each model: ${names}`);
const copies = names.filter((name) => name.startsWith('copy_'));
check(copies.join() === Array.from({ length: 36 }, (_, i) => `copy_${i + 1}`).join(), 'numbers in names count in their order');

// The models that do not load, and why.
check((await page.textContent('#state')).trim() === `ready, but 2 of ${names.length} failed`, await page.textContent('#state'));
const reasons = await page.$$eval('#failed li', (lines) => lines.map((line) => line.textContent));
check(/^broken .*backend/.test(reasons[0]) && /^cut_short .*ONNX/.test(reasons[1]), `why models failed: ${reasons}`);
await page.route('**/v2/health/ready', (route) => route.fulfill({ status: 503, body: '' }));
await page.waitForFunction((text) => document.querySelector('#state').textContent === text, `not ready: 2 of ${names.length} failed`);
await page.unroute('**/v2/health/ready');
await page.waitForFunction(() => document.querySelector('#state').textContent.startsWith('ready'));
check(true, 'a server that is not ready says how many models failed');
await page.screenshot({ path: join(folder, 'models.png') });

// The filter, by name and by state.
await page.fill('#filter', 'copy_3');
check((await rowNames()).join() === 'copy_3,copy_30,copy_31,copy_32,copy_33,copy_34,copy_35,copy_36', `a filter: ${await rowNames()}`);
check((await page.textContent('#filtered')) === `8 of ${names.length}`, 'how many it leaves');
await page.fill('#filter', 'FAILED');
check((await rowNames()).join() === 'broken,cut_short', `a filter by state: ${await rowNames()}`);
await page.fill('#filter', '');
check(/^deuteron \d/.test(await page.textContent('#server')), 'its name and version');
await page.waitForFunction(() => ['Connections', 'CPU of the machine', 'Memory of the machine'].every((name) => document.querySelector('#limits').textContent.includes(name)));
check(true, 'limits');
check(!(await page.$$eval('meter', (all) => all.some((meter) => !meter.getAttribute('aria-label')))), 'meters have names');

// By the keyboard alone: to the filter, to the model, open it, and on to its form.
const tabTo = async (isThere) => {
  for (let i = 0; i < 8 && !(await page.evaluate(isThere)); i += 1) await page.keyboard.press('Tab');
};
await page.focus('.skip');
await page.keyboard.press('Enter');
await tabTo(() => document.activeElement.id === 'filter');
await page.keyboard.type('digi');
await tabTo(() => document.activeElement.dataset.model === 'digits/1');
check(await page.evaluate(() => document.activeElement.dataset.model === 'digits/1'), 'the keyboard reaches a model');
await page.keyboard.press('Enter');
await page.waitForSelector('#detail:not([hidden])');
check(new URL(page.url()).hash === '#/models/digits', `an address for each model: ${page.url()}`);
await shows('digits');
check(await page.evaluate(() => document.activeElement.id === 'detail-title'), 'the focus goes to what was opened');
const isInView = (selector) => page.$eval(selector, (node) => {
  const { top, bottom } = node.getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
});
check(await isInView('#try'), 'the form is in view');
await page.fill('#filter', '');
check(await page.evaluate(() => document.querySelector('#list').getBoundingClientRect().right
  <= document.querySelector('#detail').getBoundingClientRect().left), 'the model is beside the list');

// The example's scan is a seven.
const { inputs } = JSON.parse(readFileSync(request, 'utf8'));
await page.fill('#inputs textarea', inputs[0].data.flat(9).join(' '));
await page.fill('#classes', '3');
await page.click('#send');
await page.waitForSelector('#answer tbody tr');
const classes = await page.$$eval('#answer tbody th', (cells) => cells.map((cell) => cell.textContent));
check(classes.length === 3 && classes[0] === 'seven', `classes: ${classes}`);
const curl = await page.textContent('#curl');
check(/^curl -s 'http:\/\/\S+:\d+\/v2\/models\/digits\/versions\/1\/infer' -d '\{"inputs"/.test(curl), 'a line of curl');
check(execFileSync('bash', ['-c', curl]).includes(':7:seven'), 'a shell that is given the line has the same answer');

await page.screenshot({ path: join(folder, 'answer.png'), fullPage: true });

// The numbers themselves.
await page.fill('#classes', '0');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer h4')?.textContent.includes('FP32'));
check((await page.$$('#answer tbody td')).length >= 10, 'the numbers as a table');

// A mistake is told in the server's words.
await page.fill('#inputs textarea', '1 2 3');
await page.click('#send');
await page.waitForSelector('#answer .bad');
check((await page.textContent('#answer')).includes('shape'), `a mistake: ${await page.textContent('#answer')}`);

// A name is text whatever it is like, and so is what a model answers.
const hostile = '<img src=x onerror=alert(1)>';
check(names.includes(hostile), 'a name like HTML is shown as it is');
await page.click(`[data-model="${hostile}/1"]`);
await shows(hostile);
check(new URL(page.url()).hash === `#/models/${encodeURIComponent(hostile)}`, 'its address');
check((await page.inputValue('#classes')) === '0', 'no classes are asked of a model without labels');
await page.fill('#inputs textarea', "it's $(text) <b>");
const line = await page.textContent('#curl');
check(execFileSync('bash', ['-c', line]).includes("it's $(text) <b>"), 'a shell takes nothing of the line for its own');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer td')?.textContent.includes("it's $(text) <b>"));
check((await page.$$('#answer b, main img')).length === 0, 'nothing of it is HTML');

// A file is one value, line ends and all; a list of JSON is one value each.
writeFileSync("it's.txt", 'first\nsecond \u00fc');
await page.setInputFiles('[aria-label="Files for x"]', "it's.txt");
await page.waitForFunction(() => document.querySelector('#curl').textContent.includes('binary_data_size'));
const fileLine = await page.textContent('#curl');
await page.evaluate(() => document.querySelector('#answer').replaceChildren());
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer td')?.textContent === 'first\nsecond \u00fc');
check(true, 'a file is a value');
check(execFileSync('bash', ['-c', fileLine]).includes('first\\nsecond \u00fc'), `a shell sends the file too: ${fileLine}`);
await page.fill('#inputs textarea', '["one\\ntwo"]');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer td')?.textContent === 'one\ntwo');
check(true, 'a list of texts in brackets');

// One that did not load says why; back leads to the one before.
await page.click('[data-model="broken/1"]');
await page.waitForFunction(() => document.querySelector('#detail-title').textContent === 'broken');
check(/backend 'none'/.test(await page.textContent('#why')) && await page.isHidden('#serving'), 'why a model does not serve');
check(/^curl -s -X POST 'http:\S+\/v2\/repository\/models\/broken\/load'$/m.test(await page.textContent('#change')), 'how to load it');
await page.goBack();
await shows(hostile);
check(true, 'back to the model before');
await page.click('[data-model="digits/1"]');
await shows('digits');
await page.reload();
await shows('digits');
check(await isInView('#try'), 'an address opens its model');

// Values set the free sizes of a shape; pasted lists may have brackets.
await page.click('[data-model="list/1"]');
await shows('list');
await page.fill('#inputs textarea', '1 2 3 4');
await shapeIs('x', '2 2');
await page.fill('#inputs textarea', '1 2 3 4 5');
check((await page.textContent('#inputs small')).includes('5 values, but the shape takes 4'), 'values that fit no shape are told');
await page.fill('#inputs textarea', '[[1, 2],\n [3, 4],\n [5.5, 6]]');
await shapeIs('x', '3 2');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer h4')?.textContent.includes('[3, 2]'));
check((await page.$$eval('#answer td', (cells) => cells.map((cell) => cell.textContent))).join() === '1,2,3,4,5.5,6', 'a list in brackets');
const read = await page.evaluate(async () => {
  const { nestedShape, readValues, shapeFor } = await import('/console/input.js');
  return [nestedShape('[[1. 2.]\n [3e-2 4.]]'), readValues('FP32', '[[1. 2.]\n [3e-2 4.]]'), nestedShape('[[1], [2, 3]]'), nestedShape('[True, False]'),
    readValues('BOOL', '[True, False]'), shapeFor([-1, 16], 32, null), shapeFor([-1, -1], 6, [2, 3]), shapeFor([-1, -1], 5, null), shapeFor([3], 2, null)];
});
check(JSON.stringify(read) === '[[2,2],[1,2,0.03,4],null,[2],[true,false],[2,16],[2,3],[1,5],null]', `lists of numpy and Python: ${JSON.stringify(read)}`);

// A picture for free sides: in its own size, or as the shape says.
await page.click('[data-model="image/1"]');
await shows('image');
const twoColours = Buffer.from(await page.evaluate(() => {
  const canvas = Object.assign(document.createElement('canvas'), { width: 40, height: 20 });
  const context = canvas.getContext('2d');
  for (const [colour, x] of [['#f00', 0], ['#00f', 20]]) { context.fillStyle = colour; context.fillRect(x, 0, 20, 20); }
  return canvas.toDataURL().split(',')[1];
}), 'base64');
await page.setInputFiles('[aria-label="Picture for x"]', { name: 'two.png', mimeType: 'image/png', buffer: twoColours });
await shapeIs('x', '3 20 40');
check(await page.evaluate(() => document.querySelector('.preview canvas')?.width === 40), 'a preview');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer h4')?.textContent.includes('[3, 20, 40]'));
check(true, 'a picture sets the free sides');
await typeShape('3 2 4');
await valuesAre('1 1 0 0 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 1 0 0 1 1');
await setChoice('Order of x', 'BGR');
await valuesAre('0 0 1 1 0 0 1 1 0 0 0 0 0 0 0 0 1 1 0 0 1 1 0 0');
await setChoice('Order of x', 'RGB');
await setChoice('Numbers of x', 'ImageNet mean and std');
await page.waitForFunction(() => document.querySelector('#inputs textarea').value.startsWith('2.2489 2.2489 -2.1179 -2.1179 '));
check(true, 'colours in either order, and the numbers of ImageNet');
await setChoice('Numbers of x', '0 to 255');
await typeShape('3 4 4');
await setChoice('Fit of x', 'letterbox');
await page.waitForFunction(() => document.querySelector('#inputs textarea').value.startsWith('114 114 114 114 255 255 0 0 255 255 0 0 114 114 114 114 '));
await typeShape('3 2 2');
await setChoice('Fit of x', 'crop');
await valuesAre('255 0 255 0 0 0 0 0 0 255 0 255');
check(true, 'a picture with borders, and one that is cut');
await page.screenshot({ path: join(folder, 'image.png') });

// An ensemble is drawn, with the shares of its steps.
await page.click('[data-model="read_digit/1"]');
await shows('read_digit');
await page.click('#send');
await page.waitForFunction(() => document.querySelectorAll('#diagram .node').length === 4
  && [...document.querySelectorAll('#diagram a')].every((step) => /\d %/.test(step.textContent)));
const shares = await page.$$eval('#diagram a', (steps) => steps.map((step) => [step.getAttribute('href'), Number(/(\d+) %/.exec(step.textContent)[1])]));
check(shares.map(([link]) => link).join() === '#/models/shrink,#/models/digits', `its steps: ${shares}`);
check(Math.abs(shares[0][1] + shares[1][1] - 100) <= 1, 'the shares are of one whole');
check((await page.$$eval('#diagram .edge', (edges) => edges.map((edge) => edge.textContent))).join() === 'image,pixels,probabilities', 'the tensors between them');
await page.screenshot({ path: join(folder, 'ensemble.png') });

// A picture's numbers are more than a text field shows, and than an argument of a shell holds.
await page.click('[data-model="large/1"]');
await shows('large');
check((await page.inputValue('#inputs textarea')) === ''
  && (await page.getAttribute('#inputs textarea', 'placeholder')).startsWith('150,528 values: 0 0 '), 'numbers beside the text field');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer')?.textContent.includes('and 150,428 more'));
const long = await page.evaluate(async () => (await import('/console/console.js')).curlLine());
check(/-d @- <<'EOF'\n\{"inputs"/.test(long), 'a long body comes as input');
const copied = JSON.parse(execFileSync('bash', ['-s'], { input: long, maxBuffer: 1 << 24 }));
check(copied.outputs[0].data.length === 150528, 'a shell that is given the long line has the same answer');
await page.click('[data-model="digits/1"]');
await shows('digits');

// A row outlives a look at the server: a click falls on the link of a second ago.
const button = await page.$('[data-model="digits/1"]');
for (let i = 0; i < 2; i += 1) await page.waitForResponse((reply) => reply.url().endsWith('/v2/repository/index'));
check(await button.evaluate((node) => node.isConnected), 'rows stay');

// What is no JSON, or more than JavaScript counts.
const parsed = await page.evaluate(async () => (await import('/console/server.js')).parseJson(
  '{"data":[NaN,-Infinity,1.5,9007199254740993,0.12345678901234567890,-12,"NaN \\" 1234567890123456789"]}').data);
check(JSON.stringify(parsed) === '["NaN","-Infinity",1.5,"9007199254740993",0.12345678901234568,-12,"NaN \\" 1234567890123456789"]',
  `numbers: ${JSON.stringify(parsed)}`);

// A picture becomes numbers: a white square is all ones.
const white = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC', 'base64');
await page.setInputFiles('#inputs input[type=file]', { name: 'white.png', mimeType: 'image/png', buffer: white });
await page.waitForFunction(() => /^1( 1){63}$/.test(document.querySelector('#inputs textarea').value));
check(true, 'a picture becomes numbers');

await page.waitForFunction(() => document.querySelector('#log').textContent.match(/ready.* after/));
check(true, 'the log');
// A batch after the first look at the metrics is one of the last minute.
await page.waitForResponse((reply) => reply.url().endsWith('/metrics'));
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#sizes svg'));
check(true, 'batch sizes are drawn');

// The last hour, with axes; it outlives a reload of the page.
const axes = () => page.$$eval('#hour svg', (charts) => charts.map((chart) => (
  [...chart.querySelectorAll('.axis-x')].map((label) => label.textContent).join() + chart.querySelectorAll('.axis-y').length)));
check((await axes()).join(' ') === Array(2).fill('−60 min,−45 min,−30 min,−15 min,now3').join(' '), `charts with axes: ${await axes()}`);
await page.waitForFunction(() => document.querySelector('#hour .line-0').getAttribute('d'));
await page.reload();
await shows('digits');
check(await page.$eval('#hour .line-0', (line) => line.getAttribute('d').startsWith('M')), 'the hour outlives a reload');

await page.screenshot({ path: join(folder, 'light.png'), fullPage: true });
await page.emulateMedia({ colorScheme: 'dark' });
await page.screenshot({ path: join(folder, 'dark.png'), fullPage: true });
await page.setViewportSize({ width: 390, height: 844 });
check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'a narrow window does not scroll sideways');
await page.screenshot({ path: join(folder, 'narrow.png'), fullPage: true });
await page.click('[data-model="copy_2/1"]');
await shows('copy_2');
check(await isInView('#try'), 'the form is in view on a phone too');
await page.screenshot({ path: join(folder, 'phone.png') });
await page.click('#detail .head a');
await page.waitForSelector('#detail', { state: 'hidden' });
check(await page.evaluate(() => document.activeElement.dataset.model === 'copy_2/1'), 'a model that is closed leaves the focus on its row');

// A page that is not seen asks nothing.
const unseen = await context.newPage();
await unseen.clock.install();
await unseen.goto(url);
await unseen.waitForSelector('[data-model="digits/1"]');
await unseen.evaluate(() => {
  Object.defineProperty(document, 'hidden', { configurable: true, value: true });
  document.dispatchEvent(new Event('visibilitychange'));
});
await unseen.waitForLoadState('networkidle');
let asksUnseen = 0;
unseen.on('request', () => { asksUnseen += 1; });
await unseen.clock.runFor(60000);
check(asksUnseen === 0, `a hidden page asks nothing: ${asksUnseen}`);
await unseen.evaluate(() => {
  Object.defineProperty(document, 'hidden', { configurable: true, value: false });
  document.dispatchEvent(new Event('visibilitychange'));
});
await unseen.waitForResponse((reply) => reply.url().endsWith('/v2/repository/index'));
check(true, 'a page that is seen again asks again');
await unseen.close();

// Without a key the page asks once for each part, and again when it has one.
const strangers = await context.newPage();
let asks = 0;
strangers.on('request', (sent) => { if (/metrics$|logs|models\/stats$/.test(sent.url())) asks += 1; });
await strangers.clock.install();
await strangers.goto(keysUrl);
await strangers.waitForSelector('#key-form:not([hidden])');
await strangers.waitForLoadState('networkidle');
await strangers.clock.runFor(60000);
check(asks === 3, `nothing more is asked without a key: ${asks}`);
await strangers.fill('#key', key);
await strangers.keyboard.press('Enter');
await strangers.waitForSelector('[data-model="digits/1"]');
await strangers.waitForSelector('#key-form', { state: 'hidden' });
await strangers.click('[data-model="digits/1"]');
await strangers.waitForSelector('#serving:not([hidden])');
const keyed = await strangers.textContent('#curl');
check(keyed.includes(' -H "Authorization: Bearer $DEUTERON_KEY" ') && !keyed.includes(key), 'the line of curl names the key');
const reply = execFileSync('bash', ['-c', keyed], { env: { ...process.env, DEUTERON_KEY: key } });
check(reply.includes('"probabilities"'), 'a shell with the key has an answer');
const change = async (what, want) => {
  await strangers.click(`#${what}`);
  await strangers.waitForFunction((text) => document.getElementById('changed').textContent === text, want);
};
await change('unload', 'digits is unloaded');
await strangers.waitForFunction(() => document.getElementById('why').textContent === 'The model is not loaded.');
await change('load', 'digits is loaded');
await strangers.waitForSelector('#serving:not([hidden])');
check(true, 'a key of an administrator unloads and loads a model');
await strangers.close();

// The browser itself notes the refused request and the server that was not ready.
await end(url, /status of (400|503)/);
