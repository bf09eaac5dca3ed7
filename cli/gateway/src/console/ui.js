// The parts that the views share. Text of agents and tools is never parsed as HTML.

import { now, withQuery } from "./api.js";
import { fromNow, local, moodOf, utc } from "./format.js";
import { Component, h as element } from "./preact.js";
import { parts, visible } from "./text.js";

// Users read the text of these attributes, so hidden characters in it become visible.
const SHOWN = new Set(["aria-label", "title", "placeholder"]);

function nodes(child) {
  if (typeof child === "string") {
    const found = parts(child);
    return found.length === 1 && !found[0].hidden ? child
      : found.map(({ text, hidden }) => (hidden ? element("mark", { class: "hidden", title: "a hidden character" }, hidden) : text));
  }
  if (Array.isArray(child)) return child.map(nodes);
  if (child === null || child === undefined || typeof child === "boolean" || child.type !== undefined) return child;
  return nodes(String(child));
}

/** Creates an element: `h("p", {class: "soft"}, "text", element)`. */
export function h(name, given, ...children) {
  const attributes = { ...given };
  for (const shown of SHOWN) if (typeof attributes[shown] === "string") attributes[shown] = visible(attributes[shown]);
  return element(name, attributes, ...children.map(nodes));
}

/** The state of the page. `place` is the view and its query; `said` is the message in the status line. */
export const page = { place: { name: "", query: new URLSearchParams() }, said: null, dialog: null, palette: null, redraw() {} };
export const redraw = () => page.redraw();

const SAID_MS = 60_000;

/** Shows a message in the status line, which screen readers announce. `undo` is `{label, run}`. */
export function say(text, undo) {
  const said = text ? { text, undo } : null;
  page.said = said;
  redraw();
  if (said) setTimeout(() => page.said === said && say(""), SAID_MS);
}

/** Changes the query of the view, and its link in the address bar, without requesting data again. */
export function keepInLink(changed) {
  const { name, query } = page.place;
  for (const [key, value] of Object.entries(changed)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  history.replaceState(null, "", `#/${name}${text ? `?${text}` : ""}`);
  redraw();
}

export const link = (view, query, ...text) => h("a", { href: `#/${withQuery(view, query)}` }, ...text);

/** Returns a link to the history of a turn, task or approval. */
export const storyLink = (id, text = id) => link("find", { id }, text);

/** Shows a time in the browser's zone, with UTC on hover. */
export const time = (ms) => (ms ? h("time", { datetime: new Date(ms).toISOString(), title: utc(ms) }, local(ms)) : null);

/** Shows the age of a time, with the time on hover. */
export const age = (ms, nowMs = now()) => (ms ? h("time", { datetime: new Date(ms).toISOString(), title: `${local(ms)} · ${utc(ms)}` }, fromNow(ms, nowMs)) : null);

export const chip = (mood, word) => h("span", { class: `chip ${mood}` }, word);
export const outcome = (word) => chip(moodOf(word), word);

export function copy(text, what = text) {
  const put = () => navigator.clipboard.writeText(text).then(() => say(`Copied ${what}.`), () => say("The browser does not permit copying."));
  return h("button", { type: "button", class: "icon", title: `Copy ${what}`, "aria-label": `Copy ${what}`, onClick: put },
    h("svg", { viewBox: "0 0 16 16", width: 13, height: 13, "aria-hidden": "true" }, h("path", { d: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3", fill: "none", stroke: "currentColor" })));
}

/** Creates a button. By convention, the label of an operator's action ends with `…` if the action opens a dialog. */
export const button = (label, onClick, more) => h("button", { type: "button", onClick, ...more }, label);

export const field = (label, attributes, ...options) => h("label", { class: attributes.class }, h("span", {}, label),
  h(options.length ? "select" : "input", { autocomplete: "off", ...attributes, class: undefined }, ...options));

/** Creates the field for a reason, which is written to the audit log. */
export const reasonField = (required = true) => field("Reason (for the audit log)", { name: "reason", required, maxlength: 1000 });

export const card = (title, ...children) => h("section", { class: "card", "aria-label": title }, h("h2", {}, title), ...children);
export const empty = (text, mood = "") => h("p", { class: `empty ${mood}` }, text);

/**
 * Draws a table. A column is `{name, cell(row), value(row), number, class}`. A column with `value` can be sorted, and
 * is part of the CSV file. `chosen` is a set of keys of rows. A row has a checkbox if
 * `canChoose(row)` is true.
 */
export function table({ caption, columns, rows, key, chosen, canChoose = () => true, note, csv, file = page.place.name, plain }) {
  const sorted = plain ? "" : page.place.query.get("sort") ?? "";
  const by = columns.find((column) => column.value && column.name === sorted.replace(/^-/, ""));
  const shown = by ? [...rows].sort((one, other) => compare(by.value(one), by.value(other)) * (sorted.startsWith("-") ? -1 : 1)) : rows;
  const can = chosen ? shown.filter(canChoose) : [];
  const all = can.length > 0 && can.every((row) => chosen.has(key(row)));
  const choose = (row, isOn) => { if (isOn) chosen.add(key(row)); else chosen.delete(key(row)); };
  const head = columns.map((column) => {
    const order = by === column ? (sorted.startsWith("-") ? "descending" : "ascending") : undefined;
    const sort = () => keepInLink({ sort: order === "ascending" ? `-${column.name}` : order ? "" : column.name });
    return h("th", { key: column.name, scope: "col", class: column.number ? "number" : undefined, "aria-sort": order },
      column.value && !plain ? h("button", { type: "button", class: "sort", onClick: sort }, column.name, h("span", { "aria-hidden": "true" }, order ? (order === "ascending" ? " ↑" : " ↓") : "")) : column.name);
  });
  const pick = (row) => canChoose(row) && h("input", {
    type: "checkbox", "aria-label": `Select ${key(row)}`, checked: chosen.has(key(row)), onChange: (event) => { choose(row, event.target.checked); redraw(); },
  });
  const body = shown.map((row) => h("tr", { key: key?.(row), class: chosen?.has(key(row)) ? "chosen" : undefined },
    chosen ? h("td", { class: "pick" }, pick(row)) : null,
    columns.map((column) => h("td", { key: column.name, class: [column.number ? "number" : "", column.class ?? ""].join(" ").trim() || undefined }, column.cell ? column.cell(row) : column.value(row)))));
  const selectAll = chosen ? h("th", { scope: "col", class: "pick" }, h("input", {
    type: "checkbox", "aria-label": "Select all on this page", checked: all, disabled: !can.length,
    onChange: (event) => { for (const row of can) choose(row, event.target.checked); redraw(); },
  })) : null;
  return h("div", { class: "sheet" },
    h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
      h("table", {}, h("caption", {}, h("span", {}, caption), note ? h("span", { class: "soft" }, note) : null,
        csv ? button("CSV", () => download(`${file}.csv`, columns, shown), { class: "quiet", title: "Download these rows" }) : null),
      h("thead", {}, h("tr", {}, selectAll, head)), h("tbody", {}, body))));
}

function compare(one, other) {
  if (one === undefined || one === null || one === "") return 1;
  if (other === undefined || other === null || other === "") return -1;
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}

function download(name, columns, rows) {
  const named = columns.filter((column) => column.value);
  // A spreadsheet would read text that begins with =, +, @ or - as a formula.
  const quoted = (value) => `"${String(value ?? "").replace(/^[=+@\t\r-](?!\d)/, "'$&").replaceAll('"', '""')}"`;
  const lines = [named.map((column) => quoted(column.name)), ...rows.map((row) => named.map((column) => quoted(column.value(row))))];
  const url = URL.createObjectURL(new Blob([lines.map((line) => line.join(",")).join("\r\n")], { type: "text/csv" }));
  const anchor = Object.assign(document.createElement("a"), { href: url, download: name });
  anchor.click();
  URL.revokeObjectURL(url);
}

/** Known names for the pickers, as one set per field. */
export const known = { tenant: new Set(), agent: new Set(), tool: new Set(), limit: new Set(), outcome: new Set(), cause: new Set() };
export function learn(found) {
  for (const [name, values] of Object.entries(found)) for (const value of values) if (value && known[name].size < 2000) known[name].add(value);
}

const TIMES = ["15m", "1h", "1d", "7d", "today", "yesterday"];

/** Draws the lists of known names for the pickers. The page contains each list once. */
export const lists = () => h("div", { hidden: true },
  Object.entries({ ...known, time: TIMES }).map(([name, values]) => h("datalist", { key: name, id: `list-${name}` }, [...values].sort().map((value) => h("option", { key: value, value })))));

/**
 * Draws the filter bar of a list. A field is `{name, label, list, options, type, wide}`. The filter is part of the
 * link.
 */
export function filters(view, query, fields, extra = {}) {
  const enter = (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(event.target)].filter(([name]) => name !== "by"));
    const by = new FormData(event.target).getAll("by").join(",");
    location.hash = `#/${withQuery(view, { ...extra, ...given, by, sort: query.get("sort") })}`;
  };
  const submit = (event) => event.target.form.requestSubmit();
  const one = ({ name, label, list, options, type, wide, help, min, max }) => {
    const value = query.get(name) ?? "";
    if (options) return field(label, { name, onChange: submit, key: name }, options.map((option) => h("option", { value: option, selected: option === value }, option || "any")));
    return field(label, { key: name, name, defaultValue: value, type: type ?? "text", list: list && `list-${list}`, class: wide ? "wider" : undefined, placeholder: help, spellcheck: false, min, max });
  };
  const isSet = fields.some(({ name }) => query.get(name));
  return h("form", { class: "filters", role: "search", "aria-label": "Filter", onSubmit: enter, key: `${view}?${fields.map(({ name }) => query.get(name) ?? "").join("|")}` },
    fields.map((given) => (given.draw ? given.draw() : one(given))),
    h("button", { class: "act" }, "Apply"), isSet ? h("a", { href: `#/${withQuery(view, extra)}` }, "Clear") : null);
}

export const FROM = { name: "from", label: "From", list: "time", help: "1d" };
export const UNTIL = { name: "until", label: "Until", list: "time" };
export const TENANT = { name: "tenant", label: "Tenant", list: "tenant" };
export const AGENT = { name: "agent", label: "Agent", list: "agent" };
export const TOOL = { name: "tool", label: "Tool", list: "tool" };

/** Draws buttons to the next and the first page of a list. */
export function pager(view, next, refresh, first = "From the newest", more = "Next page") {
  const go = (from) => () => { view.from = from; refresh(); };
  if (!next && !view.from) return null;
  return h("div", { class: "row" }, view.from ? button(first, go(undefined)) : null, next ? button(more, go(next)) : null);
}

/**
 * Asks for confirmation of an action. `fields` are elements of the form. `act` receives the form's data, a signal that
 * aborts when the dialog is closed, and `show`, which displays progress in the dialog: screen readers do not announce
 * text behind the dialog. While `act` runs, the closing button has the label `stop`. `check` receives the form's data,
 * and returns an error or nothing. After the end of the action, resolves to true if it succeeded.
 */
export function confirm(given) {
  return new Promise((done) => {
    page.dialog = { ...given, number: (confirm.number = (confirm.number ?? 0) + 1), done: (result) => { done(result); } };
    redraw();
  });
}

export class Dialog extends Component {
  constructor(given) {
    super(given);
    this.closed = new AbortController();
    this.running = Promise.resolve(false);
    this.state = { isRunning: false, wrong: "", progress: "" };
  }

  componentDidMount() {
    this.element.addEventListener("close", () => {
      this.closed.abort();
      if (page.dialog?.number === this.props.given.number) page.dialog = null;
      this.running.then(this.props.given.done);
      redraw();
    });
    this.element.showModal();
    if (!this.props.given.focus) this.element.querySelector("form input:not([type=checkbox]), form textarea, form button")?.focus();
  }

  async run(data) {
    this.setState({ isRunning: true, wrong: "", progress: "" });
    try {
      await this.props.given.act(data, { signal: this.closed.signal, show: (progress) => this.setState({ progress }) });
    } catch (error) {
      this.setState({ isRunning: false, wrong: error.message, progress: "" });
      if (this.closed.signal.aborted) say(error.message);
      return false;
    }
    this.element?.close();
    return true;
  }

  render({ given }, { isRunning, wrong, progress }) {
    const submit = (event) => {
      event.preventDefault();
      if (isRunning || !given.act) return;
      const data = new FormData(event.target);
      const error = given.check?.(data);
      if (error) this.setState({ wrong: error });
      else this.running = this.run(data);
    };
    const input = () => { if (given.check && wrong) this.setState({ wrong: given.check(new FormData(this.element.querySelector("form"))) ?? "" }); };
    return h("dialog", { ref: (element) => { this.element = element ?? this.element; }, "aria-labelledby": "dialog-title", class: given.wide ? "wide-dialog" : undefined },
      h("h2", { id: "dialog-title" }, given.title),
      h("form", { onSubmit: submit, onInput: input },
        given.text ? h("p", {}, given.text) : null, given.fields, h("p", { class: "bad", role: "alert" }, wrong), h("p", { class: "soft", role: "status" }, progress),
        h("div", { class: "row end" },
          h("button", { type: "button", onClick: () => this.element.close() }, isRunning ? given.stop ?? "Close" : "Close"),
          given.act ? h("button", { class: given.isDanger ? "act danger" : "act", disabled: isRunning }, given.button) : null)));
  }
}
