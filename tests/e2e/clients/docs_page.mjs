// The page at /docs in a headless Chromium: every route of the document, by keyboard, on 360 px, light and dark, without
// a word on the console and without a request to another host.
//
// node docs_page.mjs URL KEY FOLDER: writes screenshots to FOLDER.
import { createRequire } from "node:module";
import { strict as assert } from "node:assert";
import path from "node:path";

const { chromium } = createRequire(`${process.cwd()}/`)("playwright-core");
const [url, key, folder] = process.argv.slice(2);
const origin = new URL(url).origin;
const faults = [];
const browser = await chromium.launch({
  executablePath: process.env.HALYARD_CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  timeout: 180_000,
});

async function open(options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  // Chromium writes the refusal that asks for the key to the console; it is the only line that may be there.
  page.on("console", (message) => {
    const expected = message.text().includes("401");
    if (["error", "warning"].includes(message.type()) && !expected) faults.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`page: ${error.stack}`));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) faults.push(`asks ${request.url()}`);
  });
  await page.goto(`${url}/docs`);
  await page.getByLabel("Key", { exact: true }).waitFor();
  await page.keyboard.type(key);
  await page.keyboard.press("Enter");
  await page.locator(".route").first().waitFor();
  return { context, page };
}

const shot = (page, name) => page.screenshot({ path: path.join(folder, `docs-${name}.png`) });
const headers = { authorization: `Bearer ${key}` };
const api = await (await fetch(`${url}/openapi.json`, { headers })).json();
const methods = Object.values(api.paths).flatMap((item) => Object.keys(item).filter((name) => name !== "parameters"));

const { page } = await open({ colorScheme: "light" });
assert.equal(await page.locator(".route").count(), methods.length);

// A route is found, opened and read by keyboard.
await page.getByLabel("Search routes").focus();
await page.keyboard.type("post /chat/");
assert.equal(await page.locator(".route:visible").count(), 1);
await page.keyboard.press("Tab");
await page.keyboard.press("Enter");
const chat = page.locator(".route[open]");
// What a route says is made when it opens.
await chat.locator("pre").last().waitFor({ state: "attached" });
const words = await chat.innerText();
for (const expected of ["/v1/chat/completions", "messages", "required", "temperature", "from 0, to 2", "tool_call_id",
  "include_usage", "curl -X POST", "Authorization: Bearer", "chat.completion", "503"]) {
  assert.ok(words.includes(expected), `${expected} is not in ${words}`);
}
await shot(page, "chat");

// An address names a route.
await page.goto(`${url}/docs/#get_health`);
await page.reload();
await page.locator("#get_health[open]").waitFor();
assert.match(await page.locator("#get_health").innerText(), /Needs no key/);

// Every route, opened, fits a telephone, in both colours; the colours differ.
const colours = {};
for (const colorScheme of ["light", "dark"]) {
  const narrow = await open({ colorScheme, viewport: { width: 360, height: 740 } });
  await narrow.page.evaluate(() => document.querySelectorAll(".route").forEach((route) => { route.open = true; }));
  await narrow.page.locator(".route[open] pre").last().waitFor({ state: "attached" });
  const { wide, shown } = await narrow.page.evaluate(() =>
    ({ wide: document.documentElement.scrollWidth, shown: document.documentElement.clientWidth }));
  assert.ok(wide <= shown, `the page is ${wide} px wide on ${shown} px`);
  const text = await narrow.page.locator("main").innerText();
  assert.ok(!/\[object|undefined|NaN/.test(text), text);
  colours[colorScheme] = await narrow.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await narrow.page.evaluate(() => document.querySelector(".route").scrollIntoView());
  await shot(narrow.page, `360-${colorScheme}`);
  await narrow.context.close();
}
assert.notEqual(colours.light, colours.dark);

await page.getByText("Forget key").click();
await page.getByLabel("Key", { exact: true }).waitFor();
assert.equal(await page.evaluate(() => sessionStorage.length), 0);
await browser.close();
assert.deepEqual(faults, []);
console.log("the page agrees");
