// Tries the console in a real browser, over playwright-core: node console.mjs URL CHROMIUM FOLDER REQUEST.json KEYS KEY
// URL is the metrics port of a server of examples/models, of a model with a name like HTML that copies texts, of one of a
// picture's size that copies numbers, and of one that does not load; FOLDER takes answer.png, light.png, dark.png and narrow.png.
// KEYS is the metrics port of a server that asks for KEY.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [url, executablePath, folder, request, keysUrl, key] = process.argv.slice(2);
const { chromium } = createRequire(join(process.cwd(), 'x.js'))('playwright-core');
const faults = [];
const check = (holds, what) => { console.log(`${holds ? 'ok' : 'FAILED'} ${what}`); if (!holds) faults.push(what); };

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-background-networking'] });
const context = await browser.newContext({ viewport: { width: 1200, height: 1000 }, colorScheme: 'light' });
const page = await context.newPage();
const said = [];
const asked = new Set();
page.on('console', (message) => { if (message.type() === 'error' || message.type() === 'warning') said.push(message.text()); });
page.on('pageerror', (error) => said.push(String(error)));
page.on('request', (sent) => asked.add(new URL(sent.url()).origin));
await page.goto(url);

await page.waitForFunction(() => document.querySelectorAll('#model-rows tr').length > 0);
const names = await page.$$eval('#model-rows th', (cells) => cells.map((cell) => cell.textContent.trim()));
check(names.includes('digits 1') && names.includes('identity 1'), `a row for each model: ${names}`);
check((await page.textContent('#state')).trim() === 'ready', 'the server is ready');
check(/^deuteron \d/.test(await page.textContent('#server')), 'its name and version');
check((await page.textContent('#limits')).includes('Connections'), 'limits');
check(!(await page.$$eval('meter', (all) => all.some((meter) => !meter.getAttribute('aria-label')))), 'meters have names');

// By the keyboard alone: to the model, open it, and on to its form.
await page.focus('.skip');
await page.keyboard.press('Enter');
for (let i = 0; i < 20; i += 1) {
  await page.keyboard.press('Tab');
  if (await page.evaluate(() => document.activeElement.dataset.model === 'digits/1')) break;
}
check(await page.evaluate(() => document.activeElement.dataset.model === 'digits/1'), 'the keyboard reaches a model');
await page.keyboard.press('Enter');
await page.waitForSelector('#detail:not([hidden])');
check(await page.evaluate(() => document.activeElement.id === 'detail-title'), 'the focus goes to what was opened');

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
check(names.includes(`${hostile} 1`), 'a name like HTML is shown as it is');
await page.click(`[data-model="${hostile}/1"]`);
await page.waitForFunction((name) => document.querySelector('#detail-title').textContent.startsWith(name), hostile);
check((await page.inputValue('#classes')) === '0', 'no classes are asked of a model without labels');
await page.fill('#inputs textarea', "it's $(text) <b>");
const line = await page.textContent('#curl');
check(execFileSync('bash', ['-c', line]).includes("it's $(text) <b>"), 'a shell takes nothing of the line for its own');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer td')?.textContent.includes("it's $(text) <b>"));
check((await page.$$('#answer b, main img')).length === 0, 'nothing of it is HTML');

// One that does not load says why, and cannot be chosen.
const broken = await page.$eval('#model-rows', (table) => [...table.children].find((row) => row.textContent.startsWith('broken'))?.textContent);
check(/UNAVAILABLE.*backend/.test(broken), `why a model does not serve: ${broken}`);
await page.click('[data-model="digits/1"]');
await page.waitForFunction(() => document.querySelector('#detail-title').textContent.startsWith('digits'));

// A picture's numbers are more than a text field shows, and than an argument of a shell holds.
await page.click('[data-model="large/1"]');
await page.waitForFunction(() => document.querySelector('#detail-title').textContent.startsWith('large'));
check((await page.inputValue('#inputs textarea')) === ''
  && (await page.getAttribute('#inputs textarea', 'placeholder')).startsWith('150,528 values: 0 0 '), 'numbers beside the text field');
await page.click('#send');
await page.waitForFunction(() => document.querySelector('#answer')?.textContent.includes('and 150,428 more'));
const long = await page.evaluate(async () => (await import('/console.js')).curlLine());
check(/-d @- <<'EOF'\n\{"inputs"/.test(long), 'a long body comes as input');
const copied = JSON.parse(execFileSync('bash', ['-s'], { input: long, maxBuffer: 1 << 24 }));
check(copied.outputs[0].data.length === 150528, 'a shell that is given the long line has the same answer');
await page.click('[data-model="digits/1"]');
await page.waitForFunction(() => document.querySelector('#detail-title').textContent.startsWith('digits'));

// A row outlives a look at the server: who presses its button presses that of a second ago.
const button = await page.$('[data-model="digits/1"]');
await page.waitForTimeout(2500);
check(await button.evaluate((node) => node.isConnected), 'rows stay');

// What is no JSON, or more than JavaScript counts.
const parsed = await page.evaluate(async () => (await import('/console.js')).parseJson(
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
await page.waitForFunction(() => document.querySelector('#sizes svg'), null, { timeout: 10000 });
check(true, 'batch sizes are drawn');

await page.screenshot({ path: join(folder, 'light.png'), fullPage: true });
await page.emulateMedia({ colorScheme: 'dark' });
await page.screenshot({ path: join(folder, 'dark.png'), fullPage: true });
await page.setViewportSize({ width: 420, height: 900 });
check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'a narrow window does not scroll sideways');
await page.screenshot({ path: join(folder, 'narrow.png'), fullPage: true });

// Without a key the page asks once for each part, and again when it has one.
const strangers = await context.newPage();
let asks = 0;
strangers.on('request', (sent) => { if (/metrics$|logs/.test(sent.url())) asks += 1; });
await strangers.goto(keysUrl);
await strangers.waitForSelector('#key-form:not([hidden])');
await strangers.waitForTimeout(3500);
check(asks === 2, `nothing more is asked without a key: ${asks}`);
await strangers.fill('#key', key);
await strangers.keyboard.press('Enter');
await strangers.waitForSelector('[data-model="digits/1"]');
await strangers.waitForSelector('#key-form', { state: 'hidden' });
await strangers.click('[data-model="digits/1"]');
await strangers.waitForSelector('#detail:not([hidden])');
const keyed = await strangers.textContent('#curl');
check(keyed.includes(' -H "Authorization: Bearer $DEUTERON_KEY" ') && !keyed.includes(key), 'the line of curl names the key');
const reply = execFileSync('bash', ['-c', keyed], { env: { ...process.env, DEUTERON_KEY: key } });
check(reply.includes('"probabilities"'), 'a shell with the key has an answer');
await strangers.close();

// The refused request above is the one error that the browser itself notes.
const unexpected = said.filter((text) => !/status of 400/.test(text));
check(unexpected.length === 0, `nothing in the browser's console: ${unexpected}`);
check(asked.size === 1 && asked.has(new URL(url).origin), `no other origin: ${[...asked]}`);
await browser.close();
process.exit(faults.length ? 1 : 0);
