// Plays some work of an operator in the console, in a real Chromium, on a fleet of its own, and holds every view to axe and
// to the width of a phone. Run by hand (tests/README.md):
//   npm install --prefix target/console playwright-core@1.65.1 axe-core@4.14.1
//   node tests/console/play.mjs target/debug/tickfleet [FOLDER-FOR-SCREENSHOTS]
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const [binary, packages, screens] = process.argv.slice(2);
const require = createRequire(join(resolve(packages), "package.json"));
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;

const program = resolve(binary);
const folder = mkdtempSync(join(tmpdir(), "tickfleet-console-"));
let findings = 0;

function check(isSo, what) {
  if (!isSo) findings += 1;
  console.log(`${isSo ? "ok " : "BAD"} ${what}`);
}

const FILES = {
  "agents.yaml": "agents: {kelly: {}, fran: {}}\n",
  "tenants.yaml": "tenants: {demo: {}, acme: {}}\n",
  "limits.yaml": "limits:\n  three: {per: [agent], max: 3, every: 1d, match: {agents: [fran]}}\n",
  "tools.yaml": "tools: {}\n",
  "permissions.yaml": `permissions:
  echo: {everyone: true}
  sleep: {everyone: true}
  fail: {agents: [kelly], rules: [{name: ask, require: 'false', otherwise: ask}]}
approvers: {ann: {roles: [finance]}}
`,
};

/** A fleet with a console; answers where it is, and the key. */
async function start() {
  const conf = join(folder, "conf");
  mkdirSync(conf);
  for (const [name, text] of Object.entries(FILES)) writeFileSync(join(conf, name), text);
  const env = { ...process.env, TICKFLEET_HTTP_ADDRESS: "127.0.0.1:0" };
  delete env.REDIS_URL;
  const args = ["dev", "--console", "0", "--config", conf, "--dir", join(folder, "redis")];
  const child = spawn(program, args, { env, stdio: ["ignore", "pipe", "inherit"] });
  const found = {};
  for await (const line of createInterface({ input: child.stdout })) {
    const console_ = /^Console: (\S+) with the key (\S+)$/.exec(line);
    if (console_) [, found.url, found.key] = console_;
    const redis = /export REDIS_URL='(.*)'/.exec(line);
    if (redis) found.redis = redis[1];
    if (line.startsWith("Ctrl-C")) break;
  }
  const submit = (agent, id, call) => execFileSync(program, ["submit", "--config", conf, "--tenant", "demo", "--agent", agent, "--turn-id", id, "--call", call],
    { env: { ...env, REDIS_URL: found.redis }, stdio: "ignore" });
  return { child, submit, ...found };
}

/** The page, and what is done to it in words of an operator. */
function hands(page, fleet) {
  const settled = () => page.waitForFunction(() => !/Looking …/.test(document.querySelector("main").textContent));
  return {
    async open(view) {
      await page.goto(`${fleet.url}#/${view}`);
      await settled();
    },
    async signIn() {
      await page.goto(fleet.url);
      await page.getByLabel("API key").fill(fleet.key);
      await page.keyboard.press("Enter");
      await page.waitForSelector(".tiles");
    },
    async find(id) {
      await page.keyboard.press("Control+k");
      await page.keyboard.type(id);
      await page.keyboard.press("Enter");
      await page.waitForSelector(`main strong:text-is("${id}")`);
    },
    async confirm(button, reason) {
      const dialog = page.getByRole("dialog");
      if (reason) await dialog.getByLabel(/^Why/).fill(reason);
      await dialog.getByRole("button", { name: button, exact: true }).click();
      await dialog.waitFor({ state: "detached" });
    },
    said: () => page.getByRole("status").textContent(),
    shows: (text) => page.getByText(text).first().waitFor(),
  };
}

/** What an operator does: each takes seconds. */
async function work(page, fleet) {
  const hand = hands(page, fleet);
  await hand.signIn();
  await hand.open("pauses");
  await page.getByRole("textbox", { name: "Tenant", exact: true }).fill("demo");
  await page.getByRole("textbox", { name: /^Agent/ }).fill("fran");
  await page.getByRole("button", { name: "Pause …" }).click();
  await hand.confirm("Pause", "she writes to the wrong people");
  await page.getByRole("button", { name: "Resume agent fran of demo" }).waitFor();
  check(true, "an agent is paused");

  for (const id of ["order-17", "order-18", "order-19"]) fleet.submit("fran", id, "echo");
  fleet.submit("kelly", "payment", "fail");
  await hand.open("turns");
  await page.getByLabel("Choose demo:order-19").waitFor({ timeout: 30_000 });
  await hand.find("demo:order-17");
  await hand.shows(/paused.*she writes to the wrong people|she writes to the wrong people/);
  check(true, "the story says why order-17 waits, and who has it so");

  await hand.open("turns?agent=fran");
  for (const id of ["order-18", "order-19"]) await page.getByLabel(`Choose demo:${id}`).check();
  await page.getByRole("button", { name: "End the chosen ones" }).click();
  await hand.confirm("End them", "sold out");
  check((await hand.said()).startsWith("2 of 2"), "two turns are ended at once");

  await hand.open("approvals");
  await page.getByRole("button", { name: /^Approve demo:apr-/ }).click();
  await hand.confirm("Approve", "agreed with Ben");
  check(/is approved/.test(await hand.said()), "a call is approved");
  await hand.open("pauses");
  await page.getByRole("button", { name: "Resume agent fran of demo" }).click();
  await hand.confirm("Resume", "mended");
  await hand.find("demo:order-17");
  await page.waitForSelector('main strong:text-is("done")', { timeout: 30_000 });
  check(true, "the agent is resumed, and order-17 goes on to its end");

  await hand.open("audit");
  await page.getByRole("textbox", { name: "Text", exact: true }).fill("dev paused demo:fran");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await hand.shows("dev paused demo:fran");
  check(true, "the audit log says who paused whom");
}

/** Every view, by axe and by its width. */
async function views(browser, fleet, colorScheme, width) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height: 800 } });
  const page = await context.newPage();
  watch(page);
  const hand = hands(page, fleet);
  const session = await context.newCDPSession(page);
  const judge = async (name) => {
    // The policy of the pages lets nothing in; the debugger is not asked.
    await session.send("Runtime.evaluate", { expression: axe, allowUnsafeEvalBlockedByCSP: true });
    const found = await page.evaluate(async () => (await globalThis.axe.run()).violations.map((one) => `${one.id} at ${one.nodes[0].target}`));
    const beyond = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    check(found.length === 0, `${colorScheme} ${width} ${name}: axe finds ${found.join(", ") || "nothing"}`);
    check(beyond <= 0, `${colorScheme} ${width} ${name}: ${beyond} pixels stand out`);
    if (screens) await page.screenshot({ path: join(screens, `${colorScheme}-${width}-${name.replace(/\W+/g, "-")}.png`), fullPage: true });
  };
  await page.goto(fleet.url);
  await page.getByLabel("API key").waitFor();
  await judge("sign-in");
  await hand.signIn();
  for (const view of ["overview", "turns", "approvals", "pauses", "limits", "tools", "audit", "find?id=demo:waits", "find?id=demo:payment"]) {
    await hand.open(view);
    await judge(view);
  }
  await hand.open("approvals");
  await page.getByRole("button", { name: /^Deny demo:apr-/ }).click();
  await judge("dialog");
  await context.close();
}

function watch(page) {
  page.on("pageerror", (error) => check(false, `an error in the page: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().includes("the server responded with a status of 4")) check(false, message.text());
  });
}

const fleet = await start();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  watch(page);
  await work(page, fleet);
  fleet.submit("kelly", "waits", "fail");
  for (let calls = 0; calls < 4; calls += 1) fleet.submit("fran", `more-${calls}`, "echo");
  if (screens) mkdirSync(screens, { recursive: true });
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 360]]) await views(browser, fleet, scheme, width);
} finally {
  await browser.close();
  fleet.child.kill();
  await new Promise((ended) => fleet.child.once("exit", ended));
  rmSync(folder, { recursive: true, force: true });
}
console.log(findings ? `${findings} findings` : "no findings");
process.exitCode = findings ? 1 : 0;
