// Performs an operator's tasks in the console, in Chromium. Each task has at most four actions. Also kills the gateway
// and Redis, and checks every view with axe.
//  node tests/console/play.mjs target/debug/tickfleet FOLDER-OF-PACKAGES [FOLDER-FOR-SCREENSHOTS]
// ONLY=tasks, ONLY=views or ONLY=pictures runs only that part.
import { execFileSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { join, resolve } from "node:path";
import { cases, start, steady, stick } from "./fleet.mjs";

const [binary, packages, screens] = process.argv.slice(2);
const require = createRequire(join(resolve(packages), "package.json"));
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;
const ACTIONS_MAX = 4;
const PATIENCE_MS = 120_000;
let findings = 0;

function check(isSo, what) {
  if (!isSo) findings += 1;
  console.log(`${isSo ? "ok " : "BAD"} ${what}`);
}

function watch(page) {
  page.on("pageerror", (error) => check(false, `an error in the page: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !/the server responded with a status of|net::ERR_/.test(message.text())) check(false, message.text());
  });
}

/** Performs and counts actions. An action is a click, or a text with Enter. */
class Hands {
  constructor(page, fleet) {
    Object.assign(this, { page, fleet, actions: 0 });
    page.setDefaultTimeout(PATIENCE_MS);
  }

  async open(view) {
    await this.page.goto(`${this.fleet.url}#/${view}`);
    await this.settled();
  }

  settled() {
    return this.page.waitForFunction(() => !document.querySelector("main .loading"));
  }

  async signIn() {
    await this.page.goto(this.fleet.url);
    await this.page.getByLabel("API key").fill(this.fleet.key);
    await this.page.keyboard.press("Enter");
    await this.page.waitForSelector(".tiles");
  }

  async click(where) {
    this.actions += 1;
    await where.click();
  }

  link(name) {
    return this.click(this.page.getByRole("link", { name, exact: typeof name === "string" }).first());
  }

  button(name) {
    return this.click(this.page.getByRole("button", { name, exact: typeof name === "string" }).first());
  }

  async type(where, text) {
    this.actions += 1;
    await where.fill(text);
    await where.press("Enter");
  }

  async find(text) {
    this.actions += 1;
    await this.page.keyboard.press("Control+k");
    await this.page.keyboard.type(text);
    await this.page.keyboard.press("Enter");
  }

  async reason(text) {
    const dialog = this.page.getByRole("dialog");
    await this.type(dialog.getByLabel(/^Reason/), text);
    await dialog.waitFor({ state: "detached" });
  }

  shows(text) {
    return this.page.getByText(text).first().waitFor();
  }

  said(text) {
    return this.page.locator("#said").getByText(text).waitFor();
  }
}

async function work(page, fleet) {
  const hand = new Hands(page, fleet);
  const task = async (what, how) => {
    hand.actions = 0;
    await how().catch((error) => check(false, `${what}: ${error.message.split("\n")[0]}`));
    check(hand.actions <= ACTIONS_MAX, `${what}: ${hand.actions} actions`);
  };
  const overview = () => hand.open("overview");
  await overview();
  await task("1 find why order-17 waits", async () => {
    await hand.find("demo:order-17");
    await hand.shows(/limit orders_of_fran is used up/);
  });
  await overview();
  await task("2 approve a payment with a smaller amount; a larger one is stopped in the form", async () => {
    await hand.link(/^Approvals/);
    await hand.button(/^Approve demo:apr-/);
    const dialog = page.getByRole("dialog");
    await hand.type(dialog.getByLabel(/^New value for \/amount/), "8900");
    await dialog.getByText(/at most 890/).waitFor();
    await hand.type(dialog.getByLabel(/^New value for \/amount/), "590");
    await dialog.waitFor({ state: "detached" });
    await hand.said(/is approved/);
  });
  await overview();
  await task("3 the tool that fails most, and why", async () => {
    await hand.click(page.getByRole("region", { name: /^Tools that fail most/ }).locator("tbody a").first());
    await hand.shows(/status 503: the warehouse is closed/);
  });
  await overview();
  await task("4 pause and resume a tenant", async () => {
    await hand.button("Pause tenant globex");
    await hand.reason("they have not paid");
    await hand.said(/^calls of tenant globex are paused/);
    await hand.button("Resume");
    await hand.said(/^calls of tenant globex run again/);
  });
  await hand.open("dead?from=1d&error=503");
  fleet.service.isUp = true;
  await task("5 replay the dead letters of a day that failed with 503", async () => {
    await hand.button("Replay all matches …");
    await hand.reason("the warehouse is open");
    await hand.said(/^(\d+) of \1 replayed/);
  });
  fleet.service.isUp = false;
  await overview();
  await task("6 cancel all queued turns of an agent", async () => {
    await hand.find("cancel queued fran");
    await page.getByRole("dialog").getByText("demo:order-18").waitFor();
    await hand.reason("sold out");
    await hand.said(/^3 of 3 canceled/);
  });
  await overview();
  await task("7 the calls that paid more than 100 to one customer", async () => {
    await hand.link("Audit");
    await hand.settled();
    await hand.type(page.getByLabel("Where"), 'amount > 100 and to = "kim"');
    await page.getByRole("link", { name: "payment-160" }).first().waitFor();
    check(await page.getByRole("link", { name: "payment-60", exact: true }).count() === 0, "and no smaller payment");
  });
  await overview();
  await task("8 the stuck worker, drained", async () => {
    await hand.click(page.getByRole("link", { name: "Workers", exact: true }).first());
    await hand.settled();
    await hand.click(page.getByRole("row").filter({ hasText: "no free slot" }).getByRole("button", { name: /^Drain/ }).first());
    await hand.reason("stuck");
    await hand.said(/takes no new work/);
  });
  await overview();
  await task("9 cost per tenant today", async () => {
    const row = page.getByRole("region", { name: "Tenants today" }).getByRole("row").filter({ hasText: "demo" });
    await row.getByText(/^0\.\d+$/).waitFor();
  });
  await task("10 the tree of a task, down to the leaf that failed", async () => {
    await hand.link("Tasks");
    await hand.link("demo:chairs");
    await page.locator(".failing").getByText(/The account of the payer is closed/).waitFor();
    check(/1 failure below/.test(await page.locator(".tree.root").innerText()), "and its parents say that a leaf failed");
  });
}

/** Acts on all matches of a filter: approves calls, pauses agents, and resumes the agents without a reason. */
async function matches(page, fleet) {
  const hand = new Hands(page, fleet);
  const dialog = page.getByRole("dialog");
  const amounts = [601, 602, 603];
  for (const amount of amounts) await fleet.submit("acme", "tina", `large-${amount}`, ["pay", { to: "quinn", amount }]);
  await hand.open("approvals?agent=tina&text=quinn");
  await page.waitForFunction((number) => document.querySelectorAll(".approval").length === number, amounts.length);
  await hand.button("Approve all that match …");
  await dialog.getByRole("listitem").nth(amounts.length - 1).waitFor();
  const shown = await dialog.getByRole("listitem").allInnerTexts();
  check(amounts.every((amount) => shown.some((text) => text.includes(`"amount":${amount}`))), `the preview shows all arguments: ${shown.join("; ")}`);
  await hand.reason("all are known");
  await hand.said("3 of 3 approved.");
  await hand.open("limit?name=emails_per_agent");
  await hand.link("Turns that wait for it");
  await page.getByLabel(/^Select acme:mail-/).first().waitFor();
  const names = await page.locator("tbody .id a").allInnerTexts();
  check(names.every((name) => /:(mail|news)-/.test(name)), `only turns that wait for the limit: ${names.join(", ")}`);
  await hand.open("turns?tenant=acme&waits_for=emails_per_agent");
  await page.getByLabel(/^Select acme:mail-/).first().waitFor();
  await hand.button("Pause the agents of all that match …");
  check((await dialog.innerText()).includes("6 turns: acme:nora 6."), "the preview counts the turns of each agent");
  await hand.reason("wrong offer");
  await hand.said("1 of 1 paused.");
  await hand.open("pauses");
  await hand.button(/^Resume agent nora/);
  await dialog.getByRole("button", { name: "Resume" }).click();
  await hand.said(/^calls of agent nora of acme run again/);
}

async function steadyPage(page, fleet) {
  const hand = new Hands(page, fleet);
  await hand.open("turns?agent=nora");
  const box = page.getByLabel(/^Select acme:mail-/).first();
  const name = await box.getAttribute("aria-label");
  await box.check();
  await page.getByLabel("Text").fill("mai");
  await page.evaluate(() => document.querySelector("[name=text]").setSelectionRange(1, 2));
  const began = await page.locator(".title .soft").innerText();
  await page.waitForFunction((before) => document.querySelector(".title .soft").innerText !== before, began);
  const found = await page.evaluate(() => [document.activeElement.name, document.activeElement.value, document.activeElement.selectionStart]);
  check(found.join() === "text,mai,1", `focus and text are kept: ${found}`);
  check(await page.getByLabel(name, { exact: true }).isChecked(), "the selection is kept");
  await page.getByRole("button", { name: "Admitted", exact: true }).click();
  check(page.url().includes("sort=Admitted"), "the order is in the link");
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "CSV" }).click();
  check((await download).suggestedFilename() === "turns.csv", "the rows can be downloaded");
}

async function keyboard(page, fleet) {
  const hand = new Hands(page, fleet);
  await hand.open("turns?agent=nora");
  await page.getByLabel(/^Select acme:mail-/).first().waitFor();
  await page.locator("main").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  check(await page.locator("tbody input:checked").count() === 1, "j moves, x selects");
  await page.keyboard.press("/");
  check(await page.evaluate(() => document.activeElement.name) === "tenant", "/ leads to the filter");
  await page.locator("main").focus();
  await page.keyboard.press("?");
  await page.getByRole("dialog").getByText("find anything").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("emails_per");
  await page.keyboard.press("Enter");
  await hand.shows(/6 calls per agent in 1h/);
}

async function roles(browser, fleet) {
  for (const [name, buttons] of [["viewer", 0], ["tenant", 1]]) {
    const context = await browser.newContext();
    const page = await context.newPage();
    watch(page);
    const hand = new Hands(page, { ...fleet, url: fleet.consoleOfGateway, key: fleet.keys[name] });
    await hand.signIn();
    await hand.open("turns?agent=nora");
    await page.getByRole("link", { name: /^acme:mail-/ }).first().waitFor();
    const acts = await page.getByRole("button", { name: /Cancel/ }).count();
    check(buttons ? acts > 0 : acts === 0, `${name}: ${acts} buttons that cancel`);
    for (const view of ["approvals", "dead", "pauses", "tools", "workers", "limits"]) {
      await hand.open(view);
      const found = await page.locator("main button:not(.sort)").filter({ hasText: /^(Approve|Deny|Replay|Drop|Edit|Pause|Resume|Disable|Enable|Drain)/ }).count();
      check(buttons || found === 0, `${name}, ${view}: ${found} buttons that act`);
    }
    await context.close();
  }
}

async function session(browser, fleet) {
  const context = await browser.newContext();
  const [first, second] = [await context.newPage(), await context.newPage()];
  watch(first);
  watch(second);
  await first.goto(`${fleet.url}#key=${fleet.key}`);
  await first.waitForSelector(".tiles");
  check(!first.url().includes("key"), `the link signs in, and leaves ${first.url()}`);
  await second.goto(`${fleet.url}#/turns`);
  await second.waitForSelector(".filters");
  check(true, "a second tab shares the session");
  check(await second.evaluate((key) => !JSON.stringify(localStorage).includes(key) && !document.cookie, fleet.key), "the key is not in localStorage");
  await first.getByRole("button", { name: "Sign out" }).click();
  await second.getByLabel("API key").waitFor();
  check(true, "signing out ends the session in both");
  await context.close();
}

async function stops(page, fleet) {
  const hand = new Hands(page, fleet);
  const json = (value, status = 200) => ({ status, contentType: "application/json", body: JSON.stringify(value) });
  const letter = (id) => ({ id, kind: "letter", tenant: "demo", agent: "kelly", cause: "transient", at_ms: 1 });
  await page.route(/\/v1\/operate\/dead\?/, (route) => route.fulfill(json({ items: [letter("letter-1"), letter("letter-2")], next: "on", now_ms: 2 })));
  const replays = [];
  let came;
  await page.route(/\/v1\/operate\/dead\/replay$/, (route) => { replays.push(route); came?.(); });
  const next = async (work) => {
    const here = new Promise((resolve) => (came = resolve));
    await work();
    await here;
    return (answers, status) => replays.at(-1).fulfill(json(answers, status));
  };
  const ok = [{ result: "ok" }, { result: "ok" }];
  const dialog = page.getByRole("dialog");
  const begin = async () => {
    replays.length = 0;
    await hand.open("dead?error=503");
    await page.getByRole("button", { name: "Replay all matches …" }).click();
    await dialog.getByLabel(/^Reason/).fill("the service is back");
    const first = await next(() => dialog.getByRole("button", { name: "Replay all matches", exact: true }).click());
    return next(() => first(ok));
  };
  const says = (text) => hand.said(text).then(() => check(true, `it says: ${text}`), () => check(false, `it says: ${text}`));
  for (const stop of [() => page.keyboard.press("Escape"), () => dialog.getByRole("button", { name: "Stop after this page" }).click()]) {
    const second = await begin();
    check((await dialog.getByRole("status").textContent()) === "2 so far …", "the dialog says how far it is");
    await stop();
    await second(ok);
    await says(/^4 of 4 replayed. Stopped/);
    check(replays.length === 2, `after the stop nothing is sent: ${replays.length}`);
  }
  await (await begin())([{ result: "ok" }, { result: "queue_full", reason: "the queue is full" }]);
  await says(/^3 of 4 replayed. 1 not: the queue is full. It stopped there/);
  await (await begin())({ error: { message: "Redis is away." } }, 429);
  await dialog.getByText("2 of 2 replayed. Then: Redis is away.").waitFor();
  await (await next(() => dialog.getByRole("button", { name: "Replay all matches", exact: true }).click()))([{ result: "full", reason: "too many are handled" }]);
  await says(/^0 of 1 replayed. 1 not: too many are handled. It stopped there/);
  await page.unrouteAll({ behavior: "ignoreErrors" });
}

async function images(page, fleet) {
  const hand = new Hands(page, fleet);
  const gif = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
  const blocks = [
    { type: "text", text: "a chart" },
    { type: "image", mimeType: "image/gif", data: gif },
    { type: "image", mimeType: "text/html", data: gif },
  ];
  await page.route(/\/v1\/operate\/explain\?/, async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    for (const result of json.story.results) {
      Object.assign(result, { success: true, error: undefined, output: blocks, content_type: "application/vnd.tickfleet.content+json" });
    }
    await route.fulfill({ response, json });
  });
  await hand.open("find?id=acme:payment-60");
  const shown = page.locator("td.json img");
  await shown.first().waitFor();
  check((await shown.count()) === 1, `images: ${await shown.count()}`);
  check(await shown.first().evaluate((image) => image.decode().then(() => image.naturalWidth === 1)), "the image is decoded");
  await page.unrouteAll({ behavior: "ignoreErrors" });
}

/** Starts a proxy for `url`. After a cut, the proxy keeps its connections open, but passes no data. */
async function cable(url) {
  const { port } = new URL(url);
  const sockets = new Set();
  let isCut = false;
  const server = createServer((inner) => {
    const outer = connect(port, "127.0.0.1");
    for (const [one, other] of [[inner, outer], [outer, inner]]) {
      sockets.add(one);
      one.on("error", () => other.destroy()).on("close", () => other.destroy()).pipe(other);
      if (isCut) one.pause();
    }
  });
  await new Promise((up) => server.listen(0, "127.0.0.1", up));
  return {
    url: url.replace(`:${port}`, `:${server.address().port}`),
    cut(now) {
      isCut = now;
      for (const one of sockets) if (now) one.pause(); else one.resume();
    },
    end() {
      for (const one of sockets) one.destroy();
      server.close();
    },
  };
}

async function lost(browser, fleet) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  const wire = await cable(fleet.url);
  const hand = new Hands(page, { ...fleet, url: wire.url });
  await hand.signIn();
  await page.waitForSelector('html[data-live="yes"]');
  const shown = async (what, how, undo) => {
    await page.waitForSelector(".sign.is-live");
    await how();
    const found = await page.waitForSelector(".sign.lost").catch(() => null);
    check(found, `${what}: the sign says so: ${found ? await page.locator(".sign .words").innerText() : "it does not"}`);
    await undo?.();
  };
  await shown("a network that loses everything", () => wire.cut(true), () => wire.cut(false));
  await shown("a gateway that hangs", () => fleet.dev.kill("SIGSTOP"), () => fleet.dev.kill("SIGCONT"));
  const redis = Number(execFileSync("redis-cli", ["-s", new URL(fleet.redis).pathname, "INFO", "server"]).toString().match(/process_id:(\d+)/)[1]);
  await shown("a Redis that hangs", () => process.kill(redis, "SIGSTOP"), () => process.kill(redis, "SIGCONT"));
  await page.waitForSelector(".sign.is-live");
  const devtools = await context.newCDPSession(page);
  const frozen = devtools.send("Runtime.evaluate", { expression: "{ const end = Date.now() + 8000; while (Date.now() < end); }" });
  const animation = await frozen.then(() => page.evaluate(() => getComputedStyle(document.querySelector(".dead-man") ?? document.body).animationName));
  check(animation === "dead-man" || (await page.locator(".sign.lost").count()) === 1, "a frozen page is marked by the browser, without the page's program");
  await shown("a gateway that is killed", () => fleet.dev.kill("SIGKILL"));
  if (screens) await page.screenshot({ path: join(screens, "lost.png") });
  await context.close();
  wire.end();
}

const VIEWS = ["overview", "turns", "tasks", "approvals", "dead", "pauses", "limits", "rules", "tools", "workers", "stats?by=day,tenant", "config", "audit", "find?id=demo:payment-890", "find?id=demo:chairs", "find?id=acme:payment-1200", "tool?name=get_stock", "limit?name=emails_per_agent", "worker?name=none"];

async function views(browser, fleet, colorScheme, width) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height: width < 500 ? 844 : 900 } });
  const page = await context.newPage();
  watch(page);
  const hand = new Hands(page, fleet);
  const devtools = await context.newCDPSession(page);
  const judge = async (name) => {
    // The debugger bypasses the content security policy, which blocks scripts from outside.
    await devtools.send("Runtime.evaluate", { expression: axe, allowUnsafeEvalBlockedByCSP: true });
    const found = await page.evaluate(async () => (await globalThis.axe.run()).violations.map((one) => `${one.id} at ${one.nodes[0].target}`));
    const beyond = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    check(found.length === 0 && beyond <= 0, `${colorScheme} ${width} ${name}: axe finds ${found.join(", ") || "nothing"}; ${Math.max(0, beyond)} pixels stand out`);
    if (screens) await page.screenshot({ path: join(screens, "all", `${colorScheme}-${width}-${name.replace(/\W+/g, "-")}.png`) });
  };
  await page.goto(fleet.url);
  await page.getByLabel("API key").waitFor();
  await judge("sign-in");
  await hand.signIn();
  await page.waitForFunction(() => document.querySelectorAll(".stack g").length > 5);
  for (const view of VIEWS) {
    await hand.open(view);
    await judge(view);
  }
  await hand.open("approvals");
  await page.getByRole("button", { name: /^Deny acme:apr-/ }).first().click();
  await judge("dialog");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("pay");
  await judge("palette");
  await context.close();
}

/** Takes the screenshots. The page must have watched the fleet for a while, so that its charts have data. */
async function pictures(browser, page, fleet) {
  const hand = new Hands(page, fleet);
  const take = (name) => page.screenshot({ path: join(screens, `${name}.png`) });
  await page.setViewportSize({ width: 1280, height: 800 });
  await hand.open("overview");
  await page.waitForFunction(() => document.querySelectorAll(".stack g").length > 40 && !/Loading …|^–$/m.test(document.querySelector("main").innerText), undefined, { timeout: 120_000 });
  await take("overview");
  await page.emulateMedia({ colorScheme: "dark" });
  await take("overview-dark");
  await page.emulateMedia({ colorScheme: "light" });
  for (const [name, view] of [["turn", "find?id=demo:payment-890"], ["tree", "find?id=demo:chairs"], ["dead", "dead?from=1h"], ["limits", "limits"], ["tool", "tool?name=get_stock"], ["audit", "audit?where=amount+%3E+100"]]) {
    await hand.open(view);
    await take(name);
  }
  await hand.open("turns?state=throttled&sort=-Admitted");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("fran");
  await take("palette");
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.keyboard.press("Escape");
  const phone = await browser.newPage({ viewport: { width: 390, height: 844 } });
  await phone.goto(`${fleet.url}#key=${fleet.key}`);
  await phone.waitForSelector(".tiles");
  await new Hands(phone, fleet).open("approvals");
  await phone.locator(".approval").first().waitFor();
  await phone.screenshot({ path: join(screens, "approvals.png") });
  await phone.close();
}

async function pushed(page, fleet) {
  const hand = new Hands(page, fleet);
  await hand.open("overview");
  await page.waitForSelector('html[data-live="yes"]');
  let asked = 0;
  const count = (request) => (asked += /operate\/(overview|events)/.test(request.url()));
  page.on("request", count);
  for (let pictures = 0; pictures < 4; pictures += 1) {
    const before = await page.locator(".sign").innerText();
    await page.waitForFunction((text) => document.querySelector(".sign").innerText !== text, before);
  }
  page.off("request", count);
  // A page that polls asks once per picture. One request may be the stream, opened again.
  check(asked <= 1, `the overview is live, and asked ${asked} times for 4 pictures`);
  await hand.open("config");
  await page.getByText("limits.yaml").click();
  await hand.shows(/orders_of_fran:/);
  check(await page.getByText("the policy in force").count() === 1, "the configuration is the one in force");
}

const fleet = await start(binary);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-quic"] });
try {
  if (screens) mkdirSync(join(screens, "all"), { recursive: true });
  await cases(fleet);
  await stick(fleet);
  fleet.work = setInterval(() => steady(fleet).catch((error) => console.log(`the fleet's work: ${error.message}`)), 900);
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  watch(page);
  await session(browser, fleet);
  await new Hands(page, fleet).signIn();
  const only = process.env.ONLY;
  if (!only || only === "views") for (const [scheme, width] of [["light", 1440], ["dark", 1440], ["light", 390]]) await views(browser, fleet, scheme, width);
  if (screens && only !== "views") await pictures(browser, page, fleet);
  if (!only || only === "tasks") {
    await work(page, fleet);
    await matches(page, fleet);
    await steadyPage(page, fleet);
    await keyboard(page, fleet);
    await stops(page, fleet);
    await images(page, fleet);
    await pushed(page, fleet);
    await roles(browser, fleet);
    await lost(browser, fleet);
  }
} catch (error) {
  check(false, error.stack);
} finally {
  await browser.close();
  await fleet.end();
}
console.log(findings ? `${findings} findings` : "no findings");
process.exitCode = findings ? 1 : 0;
