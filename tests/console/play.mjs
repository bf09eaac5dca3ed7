// Performs an operator's tasks in the console, in a real Chromium, on a fleet of its own. Checks every view with axe,
// and for the width of a phone. Run by hand (tests/README.md):
//   npm install --prefix target/console playwright-core@1.65.1 axe-core@4.14.1
//   node tests/console/play.mjs target/debug/tickfleet [FOLDER-FOR-SCREENSHOTS]
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:http";
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

// The service that a tool calls. It is down at first.
let isUp = false;
const service = createServer((_, response) => response.writeHead(isUp ? 200 : 503, { "content-type": "application/json" }).end('{"stock": 3}'));
await new Promise((up) => service.listen(0, "127.0.0.1", up));
const at = `127.0.0.1:${service.address().port}`;

const FILES = {
  "agents.yaml": "agents: {kelly: {}, fran: {}}\n",
  "tenants.yaml": "tenants: {demo: {}, acme: {}}\n",
  "limits.yaml": "limits:\n  three: {per: [agent], max: 3, every: 1d, match: {agents: [fran]}}\n",
  "tools.yaml": `tools:
  stock:
    description: Says how many of a thing are there.
    effect: read
    input_schema: {type: object, properties: {}, additionalProperties: false}
    http: {method: GET, base_url: http://${at}, path: /stock, allow_private: ["${at}"]}
`,
  "permissions.yaml": `permissions:
  echo: {everyone: true}
  sleep: {everyone: true}
  stock: {everyone: true}
  fail: {agents: [kelly], rules: [{name: ask, require: 'false', otherwise: ask}]}
approvers: {ann: {roles: [finance]}}
`,
};

/** Starts a fleet with a console; returns its address and the key. */
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
    const console_ = /^Console: (\S+)#key=(\S+)$/.exec(line);
    if (console_) [, found.url, found.key] = console_;
    const redis = /export REDIS_URL='(.*)'/.exec(line);
    if (redis) found.redis = redis[1];
    if (line.startsWith("Ctrl-C")) break;
  }
  const submit = (agent, id, call) => execFileSync(program, ["submit", "--config", conf, "--tenant", "demo", "--agent", agent, "--turn-id", id, "--call", call],
    { env: { ...env, REDIS_URL: found.redis }, stdio: "ignore" });
  return { child, submit, ...found };
}

/** Actions of an operator on the page. */
function hands(page, fleet) {
  const settled = () => page.waitForFunction(() => !/Loading …/.test(document.querySelector("main").textContent));
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
      if (reason) await dialog.getByLabel(/^Reason/).fill(reason);
      await dialog.getByRole("button", { name: button, exact: true }).click();
      await dialog.waitFor({ state: "detached" });
    },
    said: () => page.getByRole("status").textContent(),
    shows: (text) => page.getByText(text).first().waitFor(),
  };
}

/** Tasks of an operator, most of them from docs/operate/console.md. Each takes less than 30 s. */
async function work(page, fleet) {
  const hand = hands(page, fleet);
  const task = async (what, how) => {
    const began = Date.now();
    await how();
    const seconds = (Date.now() - began) / 1000;
    check(seconds < 30, `${what} (${seconds.toFixed(1)} s)`);
  };
  const pauseIt = async (label, name, why) => {
    await hand.open("pauses");
    for (const [field, value] of Object.entries(name)) await page.getByRole("textbox", { name: new RegExp(`^${field}`) }).fill(value);
    await page.getByRole("button", { name: "Pause …" }).click();
    await hand.confirm("Pause", why);
    await page.getByRole("button", { name: `Resume ${label}` }).waitFor();
  };
  const resumeIt = async (label) => {
    await hand.open("pauses");
    await page.getByRole("button", { name: `Resume ${label}` }).click();
    await hand.confirm("Resume", "mended");
  };
  const isDone = async (id) => {
    await hand.find(id);
    await page.waitForSelector('main strong:text-is("done")', { timeout: 30_000 });
  };
  // This call is tried four times over 13 s. The other tasks run meanwhile.
  fleet.submit("kelly", "stock-1", "stock");
  await hand.signIn();
  await task("an agent is paused", () => pauseIt("agent fran of demo", { Tenant: "demo", Agent: "fran" }, "she writes to the wrong people"));
  for (const id of ["order-17", "order-18", "order-19"]) fleet.submit("fran", id, "echo");
  fleet.submit("kelly", "payment", "fail");
  fleet.submit("kelly", "refund", "fail");
  await task("the story says why order-17 waits, and who has it so", async () => {
    await hand.open("turns");
    await page.getByLabel("Select demo:order-19").waitFor({ timeout: 30_000 });
    await hand.find("demo:order-17");
    await hand.shows(/she writes to the wrong people/);
  });
  await task("two turns are ended at once", async () => {
    await hand.open("turns?agent=fran");
    for (const id of ["order-18", "order-19"]) await page.getByLabel(`Select demo:${id}`).check();
    await page.getByRole("button", { name: "Cancel selected" }).click();
    await hand.confirm("Cancel them", "sold out");
    check((await hand.said()).startsWith("2 of 2"), "both of them");
  });
  const decide = async (button, text, done) => {
    await hand.open("approvals");
    const first = page.getByRole("button", { name: new RegExp(`^${button} demo:apr-`) }).first();
    const name = await first.getAttribute("aria-label");
    await first.click();
    await hand.confirm(button, text);
    check(done.test(await hand.said()), `one is ${done.source}`);
    // The list shows the approval until the list is loaded again.
    await page.getByRole("button", { name, exact: true }).waitFor({ state: "detached" });
  };
  await task("the payment is approved", () => decide("Approve", "agreed with Ben", /approved/));
  await task("the refund is denied", () => decide("Deny", "paid back already", /denied/));
  await task("the agent is resumed, and order-17 goes on to its end", async () => {
    await resumeIt("agent fran of demo");
    await isDone("demo:order-17");
  });
  await task("tenant acme is paused, and resumed", async () => {
    await pauseIt("tenant acme", { Tenant: "acme" }, "they have not paid");
    await resumeIt("tenant acme");
  });
  await task("a tool is paused, its call waits, and goes on", async () => {
    await pauseIt("tool sleep for all tenants", { "Or a tool": "sleep" }, "the machine is too warm");
    // Workers apply the pause within seconds. Until then, calls run.
    for (let nap = 0, waits = false; !waits; nap += 1) {
      fleet.submit("kelly", `nap-${nap}`, 'sleep {"ms": 10}');
      await page.waitForTimeout(2000);
      await hand.find(`demo:nap-${nap}`);
      waits = await page.getByText(/too warm/).count() > 0;
    }
    await resumeIt("tool sleep for all tenants");
  });
  await task("a tool is disabled for everybody, and enabled", async () => {
    await hand.open("tools");
    await page.getByLabel(/^Tool/).fill("sleep");
    await page.getByRole("button", { name: "Disable …" }).click();
    await hand.confirm("Disable", "it posts twice");
    await page.getByRole("button", { name: "Enable sleep" }).click();
    await hand.confirm("Enable", "mended");
    await hand.shows("No tools disabled.");
  });
  await task("what failed with 503 is replayed once the service is back", async () => {
    await hand.open("dead?by=cause");
    await page.getByRole("link", { name: "transient", exact: true }).click({ timeout: 30_000 });
    await page.getByLabel(/^Select call-/).first().waitFor();
    isUp = true;
    await page.getByRole("button", { name: "Replay all matches …" }).click();
    await hand.confirm("Replay all matches", "the service is back");
    check((await hand.said()).startsWith("1 of 1 replayed"), "it is replayed");
    await isDone("demo:stock-1.again-0");
  });
  await task("the audit log says who paused whom", async () => {
    await hand.open("audit");
    await page.getByRole("textbox", { name: "Text", exact: true }).fill("dev paused demo:fran");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await hand.shows("dev paused demo:fran");
  });
}

/**
 * An action on all matches of a filter ends if it is stopped, if it fails, or if the fleet has no room, and reports
 * what was done.
 */
async function stops(page, fleet) {
  const hand = hands(page, fleet);
  const json = (value, status = 200) => ({ status, contentType: "application/json", body: JSON.stringify(value) });
  const letter = (id) => ({ id, kind: "letter", tenant: "demo", agent: "kelly", cause: "transient", at_ms: 1 });
  // There is always another page of results. The test decides how each replay ends.
  await page.route(/\/v1\/operate\/dead\?/, (route) => route.fulfill(json({ dead: [letter("letter-1"), letter("letter-2")], read: 2, next: "on", now_ms: 2 })));
  const replays = [];
  let came;
  await page.route(/\/v1\/operate\/dead\/replay$/, (route) => { replays.push(route); came?.(); });
  const next = async (work) => {
    const here = new Promise((resolve) => (came = resolve));
    await work();
    await here;
    return (answers, status) => replays.at(-1).fulfill(json(answers, status));
  };
  const ok = [{ answer: "ok" }, { answer: "ok" }];
  const dialog = page.getByRole("dialog");
  const begin = async () => {
    replays.length = 0;
    await hand.open("dead?error=503");
    await page.getByRole("button", { name: "Replay all matches …" }).click();
    await dialog.getByLabel(/^Reason/).fill("the service is back");
    const first = await next(() => dialog.getByRole("button", { name: "Replay all matches", exact: true }).click());
    return next(() => first(ok));
  };
  const says = async (text) => {
    await page.waitForFunction((said) => document.getElementById("said").textContent.startsWith(said), text, { timeout: 10_000 }).catch(() => {});
    check((await page.locator("#said").textContent()).startsWith(text), `it says: ${text}`);
  };
  for (const stop of [() => page.keyboard.press("Escape"), () => dialog.getByRole("button", { name: "Stop after this page" }).click()]) {
    const second = await begin();
    check((await dialog.getByRole("status").textContent()) === "2 so far …", "the dialog says how far it is");
    await stop();
    await second(ok);
    await says("4 of 4 replayed. Stopped");
    check(replays.length === 2, `after the stop nothing is sent: ${replays.length}`);
  }
  await (await begin())([{ answer: "ok" }, { answer: "queue_full" }]);
  await says("3 of 4 replayed. 1 not: the queue is full. It stopped there");
  await (await begin())({ error: { message: "Redis is away." } }, 429);
  await dialog.getByText("2 of 2 replayed. Then: Redis is away.").waitFor();
  await (await next(() => dialog.getByRole("button", { name: "Replay all matches", exact: true }).click()))([{ answer: "full" }]);
  await says("0 of 1 replayed. 1 not: too many handled at once. It stopped there");
  await page.unrouteAll({ behavior: "ignoreErrors" });
}

/** Checks every view with axe, and for its width. */
async function views(browser, fleet, colorScheme, width) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height: 800 } });
  const page = await context.newPage();
  watch(page);
  const hand = hands(page, fleet);
  const session = await context.newCDPSession(page);
  const judge = async (name) => {
    // The content security policy of the pages blocks scripts from outside. The debugger bypasses it.
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
  for (const view of ["overview", "turns", "tasks", "approvals", "dead", "dead?by=cause", "pauses", "limits", "rules", "tools", "workers", "stats?by=day,tenant", "config", "audit", "find?id=demo:waits", "find?id=demo:payment"]) {
    await hand.open(view);
    await judge(view);
  }
  await hand.open("approvals");
  await page.getByRole("button", { name: /^Deny demo:apr-/ }).click();
  await judge("dialog");
  await context.close();
}

/** The printed link signs in, and the key is removed from the address. */
async function link(browser, fleet) {
  const page = await browser.newPage();
  watch(page);
  await page.goto(`${fleet.url}#key=${fleet.key}`);
  await page.waitForSelector(".tiles");
  check(!page.url().includes("key"), `the link signs in, and leaves ${page.url()}`);
  await page.close();
}

/**
 * The server pushes the state of the fleet, so the overview sends no requests. The configuration view shows where
 * settings come from.
 */
async function live(page, fleet) {
  const hand = hands(page, fleet);
  await hand.open("overview");
  await page.waitForSelector('html[data-live="yes"]');
  // The view requests recent errors when it opens, and once a minute.
  await page.waitForSelector("#errors a");
  check(await page.locator("#errors a", { hasText: "All causes" }).count() === 1, "the overview leads to all causes");
  let asked = 0;
  const count = (request) => (asked += request.url().includes("/v1/operate/"));
  page.on("request", count);
  for (let pictures = 0; pictures < 2; pictures += 1) {
    const before = await page.locator("main").innerText();
    await page.waitForFunction((text) => document.querySelector("main").innerText !== text, before);
  }
  page.off("request", count);
  check(asked === 0, `the overview is live, and asked ${asked} times`);
  await hand.open("config");
  await page.getByText("limits.yaml").click();
  await hand.shows(/three:/);
  check(await page.getByText("the policy in force").count() === 1, "the configuration is the one in force");
}

function watch(page) {
  page.on("pageerror", (error) => check(false, `an error in the page: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().includes("the server responded with a status of 4")) check(false, message.text());
  });
}

const fleet = await start();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-quic"] });
try {
  const page = await browser.newPage();
  watch(page);
  await link(browser, fleet);
  await work(page, fleet);
  await stops(page, fleet);
  await live(page, fleet);
  fleet.submit("kelly", "waits", "fail");
  for (let calls = 0; calls < 4; calls += 1) fleet.submit("fran", `more-${calls}`, "echo");
  if (screens) mkdirSync(screens, { recursive: true });
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 360]]) await views(browser, fleet, scheme, width);
} finally {
  await browser.close();
  fleet.child.kill();
  await new Promise((ended) => fleet.child.once("exit", ended));
  service.close();
  rmSync(folder, { recursive: true, force: true });
}
console.log(findings ? `${findings} findings` : "no findings");
process.exitCode = findings ? 1 : 0;
