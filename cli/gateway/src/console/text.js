// Shows untrusted text safely: invisible characters become visible, and no number is cut in two.

// Combining marks. More than three in a row would cover the surrounding lines.
const MARK = "[\\u0300-\\u036f\\u0483-\\u0489\\u1ab0-\\u1aff\\u1dc0-\\u1dff\\u20d0-\\u20ff\\ufe20-\\ufe2f]";
// These characters are invisible or reorder text. shared/model/src/hidden.rs has the same list.
const HIDDEN = new RegExp(
  "[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e"
  + "\\u2060-\\u206f\\u2800\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]"
  + `|(?<=${MARK}{3})${MARK}`,
  "gu",
);
const NUMBER = /^[+-]?\d[\d.,_]*(?:[eE][+-]?\d+)?$/;
const GROUPED = /^[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$/;

const escape = (character) => [...character].flatMap((one) => one.split("")).map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("");

/** Returns the text with hidden characters as JSON escapes. The meaning of JSON text does not change. */
export const visible = (text) => text.replace(HIDDEN, escape);

/** Splits a text into parts: `{text}` is unchanged, `{hidden}` is one escaped character. */
export function parts(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index) });
    found.push({ hidden: escape(match[0]) });
    from = match.index + match[0].length;
  }
  if (from < text.length || !found.length) found.push({ text: text.slice(from) });
  return found;
}

/** Cuts a long text, and appends the number of removed characters. Keeps each number whole or removes it. */
export function cut(text, most) {
  if (text.length <= most) return text;
  let end = most;
  let before = /[\p{L}\p{N}.,_+-]*$/u.exec(text.slice(0, most))[0];
  const behind = /^[\p{L}\p{N}.,_+-]*/u.exec(text.slice(most))[0];
  let word = `${before}${behind}`.replace(/[.,]+$/, "");
  if (!GROUPED.test(word)) {
    // In a list without spaces, the cut number is the part between two commas.
    const from = before.lastIndexOf(",") + 1;
    word = word.slice(from).split(",")[0];
    before = before.slice(from);
  }
  if (NUMBER.test(word) && word.length > before.length) end = most - before.length || word.length;
  else if (/[\ud800-\udbff]/.test(text[end - 1])) end -= 1;
  if (end >= text.length) return text;
  return `${text.slice(0, end)}… (${text.length - end} characters more)`;
}
