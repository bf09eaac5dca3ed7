// Lossless JSON: a number that JavaScript would round or format in another way keeps its digits.

/** A number that keeps its digits as text. Arithmetic uses the number; display and requests use the digits. */
export class Digits {
  constructor(text) {
    this.text = text;
  }

  valueOf() {
    return Number(this.text);
  }

  toString() {
    return this.text;
  }
}

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const BLANKS = /[ \t\n\r]*/y;
const DEPTH_MAX = 1000;

/** Parses JSON. Throws a SyntaxError with the position of an error. */
export function parse(text) {
  let at = 0;
  const wrong = () => new SyntaxError(`not JSON at character ${at}`);
  const next = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (!found) throw wrong();
    at += found[0].length;
    return found[0];
  };
  const skip = () => next(BLANKS);
  const word = (name, value) => {
    if (!text.startsWith(name, at)) throw wrong();
    at += name.length;
    return value;
  };
  const number = () => {
    const digits = next(NUMBER);
    return String(Number(digits)) === digits ? Number(digits) : new Digits(digits);
  };
  /** Parses the elements between brackets. `item` parses one element. */
  const items = (close, item) => {
    at += 1;
    skip();
    if (text[at] === close) return void (at += 1);
    for (;;) {
      item();
      skip();
      if (text[at] === close) return void (at += 1);
      word(",");
      skip();
    }
  };
  const value = (depth) => {
    if (depth > DEPTH_MAX) throw wrong();
    skip();
    switch (text[at]) {
      case "{": {
        const members = [];
        items("}", () => {
          const name = JSON.parse(next(STRING));
          skip();
          word(":");
          members.push([name, value(depth + 1)]);
        });
        // Object.fromEntries keeps names such as __proto__ as ordinary members.
        return Object.fromEntries(members);
      }
      case "[": {
        const list = [];
        items("]", () => list.push(value(depth + 1)));
        return list;
      }
      case '"': return JSON.parse(next(STRING));
      case "t": return word("true", true);
      case "f": return word("false", false);
      case "n": return word("null", null);
      default: return number();
    }
  };
  const whole = value(0);
  skip();
  if (at < text.length) throw wrong();
  return whole;
}

/** Formats JSON, with `indent` spaces for each level. Undefined members are left out. */
export function write(value, indent = 0, depth = 0) {
  if (value instanceof Digits) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const [open, close, items] = Array.isArray(value)
    ? ["[", "]", value.map((item) => write(item, indent, depth + 1))]
    : ["{", "}", Object.entries(value).filter(([, member]) => member !== undefined)
      .map(([name, member]) => `${JSON.stringify(name)}:${indent ? " " : ""}${write(member, indent, depth + 1)}`)];
  if (!indent || !items.length) return `${open}${items.join(",")}${close}`;
  const line = (level) => `\n${" ".repeat(indent * level)}`;
  return `${open}${line(depth + 1)}${items.join(`,${line(depth + 1)}`)}${line(depth)}${close}`;
}
