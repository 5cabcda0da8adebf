// The page at /ui in a headless Chromium: by keyboard, on 360 px, light and dark, without a word on the console and
// without a request to another host.
//
// node page.mjs URL KEY FOLDER: drives the scripted model of tests/page.rs, writes screenshots to FOLDER. With the
// word `real` behind them it drives any model, and checks no words of it.
import { createRequire } from "node:module";
import { strict as assert } from "node:assert";
import path from "node:path";

const { chromium } = createRequire(`${process.cwd()}/`)("playwright-core");
const [url, key, folder, kind] = process.argv.slice(2);
const scripted = kind !== "real";
const origin = new URL(url).origin;
const question = scripted ? "Tell me a story." : "Why does the sea look blue? Answer in three sentences.";

const faults = [];
const browser = await chromium.launch({
  executablePath: process.env.HALYARD_CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  timeout: 180_000,
});

async function open(options) {
  const context = await browser.newContext({ colorScheme: "light", viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  // Chromium writes the refusal that asks for the key to the console; it is the only line that may be there.
  page.on("console", (message) => {
    const expected = message.text().includes("401");
    if (["error", "warning"].includes(message.type()) && !expected) faults.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`page: ${error.stack}`));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.origin !== origin && !["data:", "blob:"].includes(to.protocol)) faults.push(`asks ${request.url()}`);
  });
  return { context, page };
}

const shot = (page, name, options) => page.screenshot({ path: path.join(folder, `ui-${name}.png`), ...options });
const focused = (page) => page.evaluate(() => {
  const node = document.activeElement;
  return node.getAttribute("aria-label") ?? node.textContent.trim();
});

/** Presses Tab until the focused element has these words. */
async function tabTo(page, words) {
  for (let presses = 0; presses < 60; presses += 1) {
    if ((await focused(page)).startsWith(words)) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`Tab does not lead to ${words}`);
}

async function enterKey(page, value) {
  await page.getByLabel("Key", { exact: true }).waitFor();
  await page.keyboard.type(value);
  await page.keyboard.press("Enter");
}

async function post(body) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
  const answer = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  await answer.text();
  return answer.status;
}

/** Waits until no message is being answered, and gives the text of the last answers. */
async function answers(page) {
  await page.waitForFunction(() => document.querySelectorAll("[aria-busy]").length === 0, undefined, { timeout: 120_000 });
  return page.locator(".message.assistant:last-of-type").allInnerTexts();
}

const { context, page } = await open();

// The files come without a key, the data does not; a wrong key is refused in words.
const files = await page.goto(`${url}/ui`);
assert.equal(new URL(page.url()).pathname, "/ui/");
assert.match(files.headers()["content-security-policy"], /default-src 'self'/);
await enterKey(page, "wrong");
await page.getByText("is not one that this server accepts").waitFor();
await enterKey(page, key);
await page.locator("#state.good").waitFor();
assert.equal(await page.evaluate(() => localStorage.length), 0, "the key is in the session's storage only");

// By keyboard alone to the playground; the answer comes in pieces.
await tabTo(page, "Playground");
await page.keyboard.press("Enter");
await page.locator("option").first().waitFor({ state: "attached" });
await tabTo(page, "Message");
await page.evaluate(() => {
  window.lengths = [];
  new MutationObserver(() => window.lengths.push(document.querySelector(".assistant .said")?.textContent.length ?? 0))
    .observe(document.querySelector("main"), { childList: true, subtree: true, characterData: true });
});
await page.keyboard.type(question);
await page.keyboard.press("Enter");
const [told] = await answers(page);
const lengths = new Set(await page.evaluate(() => window.lengths));
assert.ok(lengths.size >= 4, `the answer came in ${lengths.size} pieces`);
if (scripted) {
  assert.match(told, /Once upon a time/);
  assert.match(told, /<img src=x onerror=alert\(1\)>/, "markup of a model is text");
  assert.equal(await page.locator(".message img").count(), 0);
  const thoughts = page.locator(".reasoning");
  assert.equal(await thoughts.getAttribute("open"), null, "reasoning is folded");
  await thoughts.locator("summary").focus();
  await page.keyboard.press("Enter");
  assert.match(await thoughts.innerText(), /A story/);
}

// Probabilities as colours, read by the arrow keys; two lanes beside each other.
await page.getByLabel("Probabilities").focus();
await page.keyboard.press("Space");
await page.getByLabel("Two side by side").focus();
await page.keyboard.press("Space");
await page.locator(".lane").nth(1).locator(".parameters summary").click();
await page.locator(".lane").nth(1).getByLabel("Temperature").fill(scripted ? "0" : "1.2");
await page.locator(".lane").nth(0).locator(".parameters summary").click();
await page.locator(".lane").nth(0).getByLabel("Temperature").fill("0");
for (const lane of scripted ? [] : [0, 1]) await page.locator(".lane").nth(lane).getByLabel("Max tokens").fill("40");
await page.getByLabel("Message").focus();
await page.keyboard.type(scripted ? question : "Name a colour of the sea, and say why in one sentence.");
await page.keyboard.press("Enter");
await page.locator(".lane").nth(1).locator(".token").first().waitFor();
assert.equal((await answers(page)).length, 2);
const text = page.locator(".lane").nth(0).locator(".said[tabindex]").last();
await text.focus();
await page.keyboard.press("ArrowRight");
assert.match(await page.locator(".lane").nth(0).locator(".reader").last().innerText(), /%/);
await page.getByLabel("Message").focus();
await shot(page, "playground");

// Tools: a call, its result, the answer after it. Escape stops an answer.
if (scripted) {
  await page.getByLabel("Two side by side").uncheck();
  await page.getByText("System prompt and tools").click();
  await page.getByText("Insert an example").click();
  await page.getByLabel("Message").fill("Rain in Bern?");
  await page.keyboard.press("Enter");
  await page.getByText('weather({"city": "Bern"})').waitFor();
  await page.locator("input[aria-label='Result of weather']").fill("4 mm");
  await page.keyboard.press("Enter");
  await page.getByText("Yes: 4 mm.").first().waitFor();
  await answers(page);
  await page.getByLabel("Tools").fill("{");
  await page.getByLabel("Message").fill("x");
  await page.keyboard.press("Enter");
  await page.locator(".error", { hasText: "Tools:" }).waitFor();
  await page.getByLabel("Tools").fill("");
}
for (const lane of scripted ? [] : [0, 1]) await page.locator(".lane").nth(lane).getByLabel("Max tokens").fill("");
await page.getByLabel("Message").fill(scripted ? "Never stop." : "Count from 1 to 1000, one number a line.");
// Keys are heard by a page that is slower than its server, too.
const processor = await context.newCDPSession(page);
await processor.send("Emulation.setCPUThrottlingRate", { rate: 20 });
await page.keyboard.press("Enter");
await page.locator(".lane").nth(0).locator(".message.assistant").last().locator(".token").nth(3).waitFor();
await page.keyboard.press("Escape");
await page.locator(".figures-line", { hasText: "stopped" }).first().waitFor();
await processor.send("Emulation.setCPUThrottlingRate", { rate: 1 });

// Some load, so that the charts have something to show: several at once, one refused.
const model = await page.locator("option").first().getAttribute("value");
const ask = (content, more) => post({ model, messages: [{ role: "user", content }], max_tokens: 96, ...more });
for (let round = 0; round < (scripted ? 2 : 6); round += 1) {
  const together = Array.from({ length: scripted ? 3 : 2 + (round % 4) * 2 }, (_, index) =>
    ask(`${question} (${index} of ${round})`, { temperature: 0.8, max_tokens: 24 + 40 * (index % 3) }));
  assert.ok((await Promise.all(together)).every((status) => status === 200));
}
assert.equal(await ask(question, { temperature: -1 }), 400);

// Live figures: what was sent shows up.
await page.getByRole("link", { name: "Live" }).focus();
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelector(".latency tbody td.number:nth-of-type(5)")?.textContent > "0");
await page.waitForTimeout(2500);
const counted = await page.locator(".figure", { hasText: "Ended" }).locator("b").innerText();
assert.ok(Number(counted) >= 5, `${counted} requests ended`);
await page.locator(".plot").first().focus();
await page.keyboard.press("ArrowLeft");
assert.match(await page.locator(".chart .readout").first().innerText(), /\d\d:\d\d:\d\d/);
await shot(page, "live");

// The log: newest first, the refusal with its status, and the timeline of one by its link.
await page.getByRole("link", { name: "Requests" }).click();
await page.locator(".log tbody tr", { hasText: "refused 400" }).first().waitFor();
assert.ok(await page.locator(".log tbody tr").count() >= 6);
await page.getByLabel("Filter").fill("stop");
await page.locator(".log tbody tr", { hasText: "refused 400" }).waitFor({ state: "detached" });
await page.getByLabel("Filter").fill("");
const link = page.locator(".log tbody tr", { hasText: /length|stop/ }).first().getByRole("link");
await link.focus();
await page.keyboard.press("Enter");
await page.getByRole("heading", { name: /Request \d+/ }).waitFor();
const named = await page.locator(".phases th").allInnerTexts();
for (const phase of ["queue", "prefill", "decode"]) assert.ok(named.includes(phase), `${phase} in ${named}`);
await shot(page, "requests");

// The platform, its device, and why plugins are not used.
await page.getByRole("link", { name: "System" }).click();
await page.getByRole("heading", { name: /Plugins/ }).waitFor();
await page.locator(".plugin.in_use").first().waitFor();
const plugin = page.locator(".plugin.not_used, .plugin.refused").first();
await plugin.locator("summary").focus();
await page.keyboard.press("Enter");
assert.match(await plugin.locator(".stages").innerText(), /found/);
await shot(page, "system");

// No view scrolls sideways on a telephone, in neither colour; the colours differ.
const colours = {};
const stored = await page.evaluate(() => ({ ...sessionStorage }));
for (const colorScheme of ["light", "dark"]) {
  const narrow = await open({ colorScheme, viewport: { width: 360, height: 740 } });
  await narrow.page.addInitScript((values) => Object.assign(sessionStorage, values), stored);
  await narrow.page.goto(`${url}/ui/`);
  for (const view of ["live", "requests", "requests/2", "playground", "system"]) {
    await narrow.page.goto(`${url}/ui/#${view}`);
    await narrow.page.waitForTimeout(700);
    const { wide, shown } = await narrow.page.evaluate(() =>
      ({ wide: document.documentElement.scrollWidth, shown: document.documentElement.clientWidth }));
    const words = await narrow.page.locator("main").innerText();
    assert.ok(!/\[object|undefined|NaN/.test(words), `${view}: ${words}`);
    assert.ok(wide <= shown, `${view} is ${wide} px wide on ${shown} px`);
    if (view !== "requests/2") await shot(narrow.page, `${view}-360-${colorScheme}`);
  }
  colours[colorScheme] = await narrow.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await narrow.context.close();
}
assert.notEqual(colours.light, colours.dark);

const dark = await open({ colorScheme: "dark" });
await dark.page.addInitScript((values) => Object.assign(sessionStorage, values), stored);
await dark.page.goto(`${url}/ui/#live`);
await dark.page.locator(".plot path").first().waitFor({ state: "attached" });
await dark.page.waitForTimeout(1500);
await shot(dark.page, "live-dark");

// Without a page there are no questions: a hidden tab asks nothing.
await page.getByText("Forget key").click();
await page.getByLabel("Key", { exact: true }).waitFor();
assert.equal(await page.evaluate(() => sessionStorage.length), 0);
await browser.close();
assert.deepEqual(faults, []);
console.log("the page agrees");
