// Approves the first call that waits for approval, in the console of a fleet, as the quickstart describes.
//   node tests/console/approve.mjs FOLDER-OF-PLAYWRIGHT LINK
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [packages, link] = process.argv.slice(2);
const { chromium } = createRequire(join(resolve(packages), "package.json"))("playwright-core");

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
});
try {
  const page = await browser.newPage();
  await page.goto(link);
  await page.getByRole("link", { name: /^Approvals/ }).click();
  await page.getByRole("button", { name: /^Approve \S+:/ }).first().click({ timeout: 240_000 });
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Approve", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
} finally {
  await browser.close();
}
