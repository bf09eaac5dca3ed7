// How the console shows numbers and foreign text, without a browser:
//   node tests/console/text.mjs
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

const load = async (name) => {
  const source = await readFile(new URL(`../../cli/gateway/src/console/${name}`, import.meta.url), "utf8");
  return import(`data:text/javascript,${encodeURIComponent(source)}`);
};
const { Digits, parse, write } = await load("json.js");
const { cut, parts, visible } = await load("text.js");

// Every digit is kept. Small numbers are parsed as numbers.
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

// Invisible characters are shown and marked.
assert.equal(visible("pay \u202e001\u{e0041}"), "pay \\u202e001\\udb40\\udc41");
assert.equal(visible(`9${"\u0336".repeat(5)}00 Vie\u0302\u0323t`), "9\u0336\u0336\u0336\\u0336\\u033600 Vie\u0302\u0323t");
assert.deepEqual(parts("a\u200bb"), [{ text: "a" }, { hidden: "\\u200b" }, { text: "b" }]);
assert.deepEqual(parts("Zażółć שלום 🙂"), [{ text: "Zażółć שלום 🙂" }]);

// A number is never cut in two. Cut text states that it was cut.
assert.equal(cut('{"amount":1000000}', 12), '{"amount":… (8 characters more)');
assert.equal(cut("pays 1,250.75 to kim", 8), "pays … (15 characters more)");
assert.equal(cut("1000000 to kim", 3), "1000000… (7 characters more)");
assert.equal(cut("[1234567,1234567]", 12), "[1234567,… (8 characters more)");
assert.equal(cut("short", 12), "short");
console.log("no findings");
