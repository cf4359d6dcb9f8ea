// Tries the form of texts in a real browser: node texts.mjs URL CHROMIUM FOLDER
// URL is the metrics port of a server of the models that tests/it/console/texts.rs writes. FOLDER takes the screenshots, of a
// wide and of a narrow window.

import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { check, end, start } from './browser.mjs';

const [url, executablePath, folder] = process.argv.slice(2);
const { page, shows } = await start(executablePath);
await page.goto(url);

const WIDE = { width: 1200, height: 1000 };
const NARROW = { width: 390, height: 844 };
const open = async (name) => {
  await page.goto(`${url}/#/models/${name}`);
  await shows(name);
};
const send = async () => {
  await page.evaluate(() => document.querySelector('#answer').replaceChildren());
  await page.click('#send');
  await page.waitForFunction(() => document.querySelector('#answer').childElementCount > 0);
};
const texts = (selector) => page.$$eval(selector, (all) => all.map((one) => one.textContent));
const cells = async (selector = '#answer tbody tr') => (await page.$$eval(selector, (rows) => rows.map((row) => (
  [...row.children].filter((cell) => !cell.querySelector('meter')).map((cell) => cell.textContent).join('|'))))).join(' ; ');
const is = (got, want, what) => check(got === want, `${what}: ${got}`);
// A person sees the answer in both windows, with nothing to the side.
const picture = async (name) => {
  for (const [suffix, size] of [['', WIDE], ['-narrow', NARROW]]) {
    await page.setViewportSize(size);
    check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name}${suffix} does not scroll sideways`);
    await page.$eval('#try', (form) => form.scrollIntoView({ block: 'start' }));
    await page.screenshot({ path: join(folder, `texts-${name}${suffix}.png`) });
  }
  check(await page.$$eval('#try textarea, #try input', (fields) => fields.every((field) => field.labels.length === 1)), `${name}: fields have labels`);
  await page.setViewportSize(WIDE);
};

// An embedder: a text on each line, and the cosines between them.
await open('words');
check(!(await page.textContent('#inputs')).includes('Shape') && await page.isHidden('#class-count'), 'texts in place of tensors');
await page.getByLabel('Texts, one on each line').fill('good\n\ngreat\n  \nbad');
is(await page.textContent('#inputs small'), '3 texts', 'empty lines are no texts');
await send();
is((await texts('#answer h4')).join(), '2 dimensions,Cosines between the texts', 'titles');
is(await cells('#answer > :nth-child(2) tbody tr'), '1: good|3|1.000|1.0000 0.0000 ; 2: great|3|1.000|0.8000 0.6000 ; 3: bad|3|1.000|-1.0000 0.0000', 'vectors');
is(await cells('#answer > :nth-child(4) tbody tr'), '1: good|1.000|0.800|-1.000 ; 2: great|0.800|1.000|-0.800 ; 3: bad|-1.000|-0.800|1.000', 'cosines');
await picture('words');
await page.getByLabel('Prompt, by its name').fill('query');
await send();
is(await cells('#answer > :nth-child(2) tbody tr:first-child'), '1: good|4|1.500|1.5000 0.0000', 'a prompt is a token more');
check(execFileSync('bash', ['-c', await page.textContent('#curl')]).includes('"shape":[3,2]'), 'a shell sends the same');
await page.getByLabel('Prompt, by its name').fill('other');
await send();
check(/'prompt_name' has "other"; known are "query"/.test(await page.textContent('#answer')), 'the prompts that the model has');
await page.getByLabel('Prompt, by its name').fill('');
await page.getByLabel('Texts, one on each line').fill(Array(33).fill('good').join('\n'));
is(await page.textContent('#inputs small'), '33 texts: a request takes 32', 'more than a request takes');

// The tensors are a click away, and the texts are kept.
await page.getByLabel('As tensors').check();
check((await texts('#inputs legend')).join().startsWith('text · BYTES [any, 1],prompt_name') && await page.isVisible('#class-count'), 'the form of tensors');
await page.getByLabel('As tensors').uncheck();
check((await page.getByLabel('Texts, one on each line').inputValue()).length === 33 * 5 - 1, 'the texts are there again');

// Vectors that are zero have no cosine.
await page.getByLabel('Texts, one on each line').fill('good\nlives');
await send();
is(await cells('#answer > :nth-child(4) tbody tr'), '1: good|1.000|– ; 2: lives|–|–', 'no cosine');

// A classifier: labels with bars, best first.
await open('mood');
await page.getByLabel('Texts, one on each line').fill('good\n<b>bad</b> awful');
await send();
is((await texts('#answer h4')).join(), 'good,<b>bad</b> awful', 'a text is text');
is(await cells(), 'positive|0.8668 ; neutral|0.1173 ; negative|0.0159 ; negative|0.8668 ; neutral|0.1173 ; positive|0.0159', 'labels');
await picture('mood');

// A reranker: in the order of the scores.
await open('rank');
await page.getByLabel('Query').fill('good');
await page.getByLabel('Texts, one on each line').fill('bad\ngreat\nlives');
await send();
is(await cells(), '1: great|0.9820 ; 2: lives|0.5000 ; 3: bad|0.0180', 'ranks');
check(await page.$eval('#answer meter', (bar) => bar.max === 1 && bar.value > 0.9), 'bars');
await picture('rank');

// SPLADE: the heaviest tokens by their names.
await open('splade');
await page.getByLabel('Texts, one on each line').fill('good anna');
await send();
is(await cells(), 'anna|1.6094 ; good|1.3863 ; great|0.6931', 'tokens');
await picture('splade');
await page.route('**/decode', (route) => route.fulfill({ status: 400, body: '{"error":"no tokenizer"}' }));
await send();
is((await texts('#answer tbody th')).join(), '7,4,5', 'tokens by number');
await page.unroute('**/decode');

// Entities are marked in the text, whose places are counted in characters.
await open('entities');
await page.getByLabel('Texts, one on each line').fill('😀 Anna lives in Berlin\nlives');
await send();
is((await texts('#answer mark')).join(), 'Anna PER 1.000,Berlin LOC 1.000', 'entities');
is((await texts('#answer .marked')).join('/'), '😀 Anna PER 1.000 lives in Berlin LOC 1.000/lives', 'their texts');
await picture('entities');

// A question and its context.
await open('answers');
await page.getByLabel('Question').fill('where lives anna');
await page.getByLabel('Context').fill('Anna lives\nin Berlin good');
await send();
is(await page.textContent('#answer strong'), 'Berlin', 'an answer');
is(await page.textContent('#answer .marked'), 'Anna lives\nin Berlin answer good', 'its place');
await picture('answers');

// Zero-shot: a text and labels.
await open('topics');
await page.getByLabel('Text', { exact: true }).fill('great');
await page.getByLabel('Labels, one on each line').fill('bad\ngood');
await send();
is((await texts('#answer tbody th')).join(), 'good,bad', 'labels of a request');
await page.getByLabel('Several labels may hold').check();
await page.getByLabel('Sentence of a label').fill('none');
await send();
check((await page.textContent('#answer')).includes('must have {} once'), 'a sentence without a place for the label');
await page.getByLabel('Sentence of a label').fill('{} in Berlin');
await send();
const body = await page.textContent('#curl');
check(body.includes('"name":"multi_label","datatype":"BOOL","shape":[1],"data":[true]') && body.includes('{} in Berlin'), 'its options');
await picture('topics');

// By the keyboard: Enter in a line sends.
await open('rank');
await page.getByLabel('Query').focus();
await page.keyboard.type('good');
await page.keyboard.press('Tab');
await page.keyboard.type('great');
await page.keyboard.press('Shift+Tab');
await page.keyboard.press('Enter');
await page.waitForSelector('#answer tbody tr');
check(true, 'by the keyboard alone');

// A model whose tensors are others keeps the form of tensors.
await open('other');
check((await texts('#inputs legend')).join() === 'text · BYTES [1],more · FP32 [2]' && await page.isHidden('#forms'), 'a model of another kind');
await page.emulateMedia({ colorScheme: 'dark' });
await open('entities');
await page.getByLabel('Texts, one on each line').fill('Anna lives in Berlin');
await send();
await page.screenshot({ path: join(folder, 'texts-dark.png') });

// The browser itself notes what the server refused.
await end(url, /status of 400/);
