// Checks without a browser how the console shows numbers and foreign text: node tests/console/text.mjs
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

// Node.js loads a .js file as a module only if a package.json declares it.
const folder = mkdtempSync(join(tmpdir(), "tickfleet-text-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
cpSync(fileURLToPath(new URL("../../cli/gateway/src/console", import.meta.url)), folder, { recursive: true });
writeFileSync(join(folder, "package.json"), '{"type": "module"}');
const load = (name) => import(pathToFileURL(join(folder, name)).href);
const { Digits, parse, write } = await load("json.js");
const { cut, parts, visible } = await load("text.js");

for (const json of [
  '{"amount":9007199254740993,"to":"kim"}', "12345678901234567890.10", "5.10", "1e400", "-0", '[0.1,1.0,{"a":[]}]', "null", '"a\\u202eb\\n"', "{}",
  '{"__proto__":{"x":9007199254740993}}',
]) {
  assert.equal(write(parse(json)).replaceAll("\u202e", "\\u202e"), json);
}
assert.equal(parse(" [ 1 , 2.5 ] ")[1], 2.5);
assert.ok(parse("9007199254740993") instanceof Digits && parse("5.10") > 5 && `${parse("5.10")}` === "5.10");
assert.equal(write({ set: { "/amount": parse("9007199254740993") }, narrowed: null, gone: undefined }), '{"set":{"/amount":9007199254740993},"narrowed":null}');
assert.equal(write(parse('{"a":[1,{"b":2}]}'), 2), JSON.stringify({ a: [1, { b: 2 }] }, null, 2));
for (const bad of ["", "01", "1.", "+1", "[1,]", '{"a" 1}', '{"a":1,}', "tru", "1 2", '"\n"', '"\\x"', "[".repeat(5000)]) assert.throws(() => parse(bad), bad);

assert.equal(visible("pay \u202e001\u{e0041}"), "pay \\u202e001\\udb40\\udc41");
assert.equal(visible(`9${"\u0336".repeat(5)}00 Vie\u0302\u0323t`), "9\u0336\u0336\u0336\\u0336\\u033600 Vie\u0302\u0323t");
assert.deepEqual(parts("a\u200bb"), [{ text: "a" }, { hidden: "\\u200b" }, { text: "b" }]);
assert.deepEqual(parts("Zażółć שלום 🙂"), [{ text: "Zażółć שלום 🙂" }]);

assert.equal(cut('{"amount":1000000}', 12), '{"amount":… (8 characters more)');
assert.equal(cut("pays 1,250.75 to kim", 8), "pays … (15 characters more)");
assert.equal(cut("1000000 to kim", 3), "1000000… (7 characters more)");
assert.equal(cut("[1234567,1234567]", 12), "[1234567,… (8 characters more)");
assert.equal(cut("short", 12), "short");

const { isAtMost, notNarrower } = await load("views/approvals.js");
assert.equal(isAtMost("9007199254740993", "9007199254740992"), false);
assert.equal(isAtMost("5.10", "5.1"), true);
for (const right of ["0", "12.5", "890"]) assert.equal(notNarrower("/amount", 890, right), undefined, right);
for (const wrong of ["891", "-1", "many", "1e9", "[1]", "null"]) assert.match(notNarrower("/amount", 890, wrong), /^amount: expected/, wrong);
assert.equal(notNarrower("/amount", "890.00", "600"), undefined);
assert.match(notNarrower("/amount", "890.00", "890.01"), /at most/);
assert.equal(notNarrower("/to", ["kim", "lee"], '["lee"]'), undefined);
assert.match(notNarrower("/to", ["kim", "lee"], '["lee","lee"]'), /members/);
assert.equal(notNarrower("/limits", { a: 1, b: 2 }, '{"b":2}'), undefined);
assert.match(notNarrower("/limits", { a: 1, b: 2 }, '{"b":1}'), /members/);
assert.match(notNarrower("/customer", "kim", "lee"), /cannot be reduced/);

const { moodOf, pointInTime, range, tally } = await load("format.js");
const noon = new Date(2026, 10, 29, 12).getTime();
assert.equal(pointInTime("15m", noon), noon - 900_000);
assert.equal(pointInTime("today", noon), new Date(2026, 10, 29).getTime());
assert.deepEqual(range(new URLSearchParams("from=yesterday"), noon), { from: new Date(2026, 10, 28).getTime(), until: new Date(2026, 10, 29).getTime() });
assert.equal(pointInTime("2026-11-01 10:30", noon), new Date(2026, 10, 1, 10, 30).getTime());
assert.throws(() => pointInTime("soon", noon), /expected 15m/);
for (const [word, mood] of [["ok", "good"], ["permanent", "bad"], ["outcome_unknown", "bad"], ["denied", "doubt"], ["a_new_word", "doubt"]]) assert.equal(moodOf(word), mood, word);
assert.deepEqual(tally({ ok: 3, transient: 2, denied: 1, outcome_unknown: 1 }), { ok: 3, failed: 2, refused: 1, unknown: 1, all: 7 });
console.log("no findings");
