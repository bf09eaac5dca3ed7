// Signs in to the console at an identity provider, in Chromium. The test `gateway::sign_in` starts the servers.
//  node tests/console/sign-in.mjs FOLDER-OF-PACKAGES CONSOLE CONSOLE-WITHOUT-PROVIDER KEY-WITHOUT-PROVIDER
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [packages, url, plain, key] = process.argv.slice(2);
const require = createRequire(join(resolve(packages), "package.json"));
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;
const PATIENCE_MS = 60_000;
let findings = 0;

function check(isSo, what) {
  if (!isSo) findings += 1;
  console.log(`${isSo ? "ok " : "BAD"} ${what}`);
}

async function open(context, address) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  page.on("pageerror", (error) => check(false, `an error in the page: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !/the server responded with a status of|net::ERR_/.test(message.text())) check(false, message.text());
  });
  await page.goto(address);
  return page;
}

const choice = (page) => page.getByRole("button", { name: /^Sign in at / });
const field = (page) => page.getByLabel("API key or token");
const alertOf = (page) => page.getByRole("alert");
const me = (page) => page.locator("#me");
const isIn = (page, who) => me(page).filter({ hasText: who }).waitFor();

async function choose(page, account) {
  await choice(page).click();
  await page.getByRole("link", { name: account, exact: true }).click();
}

async function refused(page, account, reason) {
  await alertOf(page).filter({ hasText: reason }).waitFor().catch(async () => check(false, `${account}: ${await alertOf(page).textContent()}`));
  const left = await page.evaluate(() => ({ address: location.href, stored: Object.keys(sessionStorage) }));
  check(left.address.split("#")[0] === url && left.stored.length === 0, `${account}: ${reason}; it leaves ${JSON.stringify(left)}`);
  await choice(page).waitFor();
  check(await choice(page).isEnabled(), `${account}: the user can sign in again`);
}

async function session(context) {
  const waits = await open(context, url);
  await choice(waits).waitFor();
  const first = await open(context, `${url}#/turns`);
  const sent = [];
  first.on("request", (request) => sent.push(request.url()));
  await choice(first).click();
  await first.waitForURL(/\/authorize\?/);
  const asked = new URL(first.url());
  check(asked.searchParams.get("code_challenge_method") === "S256" && !asked.search.includes("verifier"), "the browser sends a challenge, and keeps the verifier");
  await first.getByRole("link", { name: "otto", exact: true }).click();
  await isIn(first, "otto@example.com");
  await first.locator(".filters").waitFor();
  check(first.url() === `${url}#/turns`, `it is back in its view, without a code in the address: ${first.url()}`);
  const withCode = sent.find((address) => address.includes("code=") && address.startsWith(url));
  check(withCode !== undefined && sent.every((address) => !address.includes("eyJ")), "no address has a token");
  const stored = await first.evaluate(() => ({ session: Object.keys(sessionStorage), token: sessionStorage.getItem("tickfleet-key"), local: JSON.stringify(localStorage), cookie: document.cookie }));
  check(stored.session.join() === "tickfleet-key" && stored.token.startsWith("eyJ") && !stored.local.includes(stored.token) && !stored.cookie, `the token is only in the tabs: ${stored.session}`);

  await isIn(waits, "otto@example.com");
  check(true, "a tab that showed the form is signed in as well");
  const second = await open(context, `${url}#/workers`);
  await isIn(second, "otto@example.com");
  check(true, "a second tab shares the session");
  await first.reload();
  await isIn(first, "otto@example.com");
  check(first.url() === `${url}#/turns`, "a reload keeps the session");

  await second.goto(`${url}?code=abc&state=def#/turns`);
  await isIn(second, "otto@example.com");
  check(second.url() === `${url}#/turns`, `a forged response changes nothing: ${second.url()}`);

  await second.getByRole("button", { name: "Sign out" }).click();
  for (const page of [first, second, waits]) {
    await field(page).waitFor();
    await choice(page).waitFor();
    check((await page.evaluate(() => sessionStorage.length)) === 0, "signing out ends the session in each tab");
  }
  await first.goto(withCode);
  await refused(first, "a response that is used again", "did not begin in this tab, or was already used");
  for (const page of [first, second, waits]) await page.close();
}

async function failures(context) {
  const page = await open(context, url);
  for (const [account, reason] of [
    ["deny", "denied the sign-in: The user said no. Sign in again as another user"],
    ["swapped", "did not begin in this tab"],
    ["elsewhere", "from another identity provider"],
    ["late", "rejected the code of this sign-in: it has expired"],
    ["nobody", "but this fleet rejects you: access denied: no rule"],
    ["nonce", "belongs to another sign-in"],
    ["audience", "it is for another service"],
    ["issuer", "another issuer issued it"],
    ["refused", "fleet operator: check"],
    ["broken", "does not respond as expected; sign in again"],
    ["hanging", "does not respond as expected; sign in again"],
  ]) {
    await choose(page, account);
    await refused(page, account, reason);
  }
  await page.route(`${url}sign-in`, (route) => {
    if (route.request().method() !== "POST") return route.continue();
    const body = JSON.parse(route.request().postData());
    return route.continue({ postData: JSON.stringify({ ...body, verifier: body.verifier.toUpperCase() }) });
  });
  await choose(page, "otto");
  await refused(page, "a wrong verifier", "rejected the code of this sign-in");
  await page.unrouteAll({ behavior: "wait" });

  await page.evaluate(() => { location.hash = "#/workers"; });
  await choose(page, "otto");
  await isIn(page, "otto@example.com");
  check(page.url() === `${url}#/workers`, "after all that, the same tab signs in");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.close();
}

async function expiry(context) {
  const first = await open(context, `${url}#/workers`);
  await choose(first, "brief");
  await isIn(first, "brief@example.com");
  const second = await open(context, `${url}#/turns`);
  await isIn(second, "brief@example.com");
  for (const page of [first, second]) {
    await alertOf(page).filter({ hasText: "Your session has expired. Sign in again." }).waitFor();
    check((await page.evaluate(() => sessionStorage.length)) === 0, "an expired session leaves no token");
  }
  await choose(first, "otto");
  await isIn(first, "otto@example.com");
  check(first.url() === `${url}#/workers`, "after the expiry, the user is back in the same view");
  await isIn(second, "otto@example.com");
  check(second.url() === `${url}#/turns`, "and so is the other tab");
  for (const page of [first, second]) await page.close();
}

async function form(context) {
  const page = await open(context, url);
  await choice(page).waitFor();
  const devtools = await context.newCDPSession(page);
  // The debugger bypasses the content security policy, which blocks scripts from outside.
  await devtools.send("Runtime.evaluate", { expression: axe, allowUnsafeEvalBlockedByCSP: true });
  const found = await page.evaluate(async () => (await globalThis.axe.run()).violations.map((one) => `${one.id} at ${one.nodes[0].target}`));
  check(found.length === 0, `axe finds ${found.join(", ") || "nothing"}`);
  const body = JSON.stringify({ error: { code: "issuer_unavailable", message: "the identity provider does not respond" } });
  await page.route(`${url}sign-in`, (route) => route.fulfill({ status: 503, contentType: "application/json", body }));
  await page.reload();
  await page.getByText("Sign-in at the identity provider is not available: the identity provider does not respond").waitFor();
  check((await choice(page).count()) === 0 && (await field(page).isEnabled()), "while the provider is away, keys are accepted");
  await page.unrouteAll({ behavior: "wait" });
  await choice(page).waitFor();
  check(true, "the form offers the provider when it is back");

  const other = await open(context, url.replace("127.0.0.1", "localhost"));
  await other.getByText("To sign in at").waitFor();
  check((await choice(other).count()) === 0 && (await other.getByRole("link", { name: url }).count()) === 1, "another address of the console names the one for sign-in");
  for (const one of [page, other]) await one.close();
}

async function keysOnly(context) {
  const page = await context.newPage();
  const offered = page.waitForResponse(`${plain}sign-in`);
  await page.goto(plain);
  check((await (await offered).json()).sign_in === null, "the gateway offers no provider");
  await field(page).waitFor();
  check((await page.locator("form button").count()) === 1 && (await page.getByText("identity provider").count()) === 0, "the form has one button");
  await field(page).fill(key);
  await page.keyboard.press("Enter");
  await isIn(page, "ben");
  check(true, "a key signs in as before");
  await page.close();
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-quic"] });
try {
  for (const part of [session, failures, expiry, form, keysOnly]) {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
    await part(context);
    await context.close();
  }
} catch (error) {
  check(false, error.stack);
} finally {
  await browser.close();
}
console.log(findings ? `${findings} findings` : "no findings");
process.exitCode = findings ? 1 : 0;
