// A browser with one page, and the checks of a script.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const { chromium } = createRequire(join(process.cwd(), 'x.js'))('playwright-core');
const faults = [];
const said = [];
const asked = new Set();
let browser = null;

export const check = (holds, what) => { console.log(`${holds ? 'ok' : 'FAILED'} ${what.replaceAll('\n', ' ')}`); if (!holds) faults.push(what); };

export async function start(executablePath) {
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-background-networking'] });
  const context = await browser.newContext({ viewport: { width: 1200, height: 1000 }, colorScheme: 'light' });
  const page = await context.newPage();
  page.on('console', (message) => { if (message.type() === 'error' || message.type() === 'warning') said.push(message.text()); });
  page.on('pageerror', (error) => said.push(String(error)));
  page.on('request', (sent) => asked.add(new URL(sent.url()).origin));
  const shows = (name) => page.waitForFunction((wanted) => document.querySelector('#detail-title').textContent === wanted
    && !document.querySelector('#serving').hidden, name);
  return { context, page, shows };
}

// Checks that the page asked its own server alone, and that the browser noted nothing but `expected`.
export async function end(url, expected) {
  const unexpected = said.filter((text) => !expected.test(text));
  check(unexpected.length === 0, `nothing in the browser's console: ${unexpected}`);
  check(asked.size === 1 && asked.has(new URL(url).origin), `no other origin: ${[...asked]}`);
  await browser.close();
  process.exit(faults.length ? 1 : 0);
}
