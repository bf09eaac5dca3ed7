// Elements from data. Text of agents and tools is never parsed as HTML; invisible characters are escaped and marked.

import { parts, visible } from "./text.js";

/** A text as nodes, with invisible characters escaped and marked. */
function nodes(child) {
  if (child instanceof Node) return [child];
  return parts(String(child)).map(({ text, hidden }) => (hidden ? h("mark", { class: "hidden", title: "a hidden character" }, hidden) : text));
}

// Attributes whose text is shown or announced to users.
const SHOWN = new Set(["aria-label", "title"]);

/** An element: `h("p", {class: "soft"}, "text", element)`. An attribute whose value is a function is a listener. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value === true ? "" : SHOWN.has(key) ? visible(String(value)) : String(value));
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false).flatMap(nodes));
  return element;
}

/** A table that scrolls if it is wider than the window. A column: [name, function from row to cell, is a number]. */
export function table(caption, columns, rows) {
  const kind = (isNumber) => (isNumber ? "number" : undefined);
  const head = h("tr", {}, columns.map(([name, , number]) => h("th", { scope: "col", class: kind(number) }, name)));
  const line = (row) => h("tr", {}, columns.map(([, cell, number]) => h("td", { class: kind(number) }, cell(row) ?? "")));
  const body = h("tbody", {}, rows.map(line));
  const inner = h("table", {}, h("caption", {}, caption), h("thead", {}, head), body);
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, inner);
}

export function span(ms) {
  if (ms === undefined || ms === null) return "";
  const all = Math.max(0, ms);
  if (all < 1000) return `${Math.round(all)} ms`;
  if (all < 60_000) return `${(all / 1000).toFixed(1)} s`;
  if (all < 3_600_000) return `${Math.floor(all / 60_000)} min ${Math.floor((all % 60_000) / 1000)} s`;
  if (all < 172_800_000) return `${Math.floor(all / 3_600_000)} h ${Math.floor((all % 3_600_000) / 60_000)} min`;
  return `${Math.floor(all / 86_400_000)} days`;
}

/** A time relative to now. */
export function fromNow(atMs, nowMs) {
  if (!atMs) return "";
  return atMs >= nowMs ? `in ${span(atMs - nowMs)}` : `${span(nowMs - atMs)} ago`;
}

/** A date and time in UTC, in the format that the commands print. */
export const clock = (ms) => (ms ? `${new Date(ms).toISOString().replace("T", " ").slice(0, 19)} UTC` : "");

/** A link to the history of a turn, task or approval. */
export const storyLink = (id) => h("a", { href: `#/find?id=${encodeURIComponent(id)}` }, id);

/** Shows a message in the status line, which screen readers announce. */
export function say(text) {
  document.getElementById("said").textContent = visible(text);
}

export function field(label, attributes, ...options) {
  const isChoice = options.length > 0;
  const input = h(isChoice ? "select" : "input", { autocomplete: "off", ...attributes }, options);
  return h("label", {}, label, h("br"), input);
}

/**
 * Asks for confirmation of an action. `fields` are elements of the form. `act` receives the form's data, a signal that
 * aborts when the dialog is closed, and `show`, which displays progress in the dialog: screen readers do not announce
 * text behind the dialog. While `act` runs, the closing button has the label `stop`. An error is shown in the dialog.
 * When nothing runs any more, resolves to true if the action succeeded.
 */
export function confirm({ title, text, fields = [], button, stop = "Close", act }) {
  return new Promise((done) => {
    const closed = new AbortController();
    const wrong = h("p", { class: "bad", role: "alert" });
    const state = h("p", { class: "soft", role: "status" });
    const go = h("button", { class: "act" }, button);
    const cancel = h("button", { type: "button", click: () => dialog.close() }, "Close");
    const form = h("form", { submit }, text ? h("p", {}, text) : null, fields, wrong, state, h("div", { class: "row" }, go, cancel));
    const heading = h("h2", { id: "dialog-title" }, title);
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, heading, form);
    let running = Promise.resolve(false);
    function draw(isRunning, error) {
      go.disabled = isRunning;
      cancel.textContent = isRunning ? stop : "Close";
      wrong.textContent = visible(error);
      state.textContent = "";
    }
    async function run() {
      draw(true, "");
      try {
        await act(new FormData(form), { signal: closed.signal, show: (said) => (state.textContent = visible(said)) });
      } catch (error) {
        draw(false, error.message);
        if (!dialog.open) say(error.message);
        return false;
      }
      dialog.close();
      return true;
    }
    function submit(event) {
      event.preventDefault();
      running = run();
    }
    dialog.addEventListener("close", () => {
      closed.abort();
      dialog.remove();
      running.then(done);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** The field for a reason, which is written to the audit log. */
export const reasonField = (required = true) => field("Reason (for the audit log)", { name: "reason", required, maxlength: 400 });
