// The search field of the header, and the keyboard shortcuts.

import { cancelAll, mayFleet, pause, switchTool } from "./actions.js";
import { may, whoami } from "./api.js";
import { workerOf } from "./format.js";
import { live } from "./live.js";
import { Component } from "./preact.js";
import { h, known, page } from "./ui.js";

const SHOWN = 9;
const go = (hash) => () => { location.hash = hash; };
const of = (view, query) => go(`#/${view}?${new URLSearchParams(query)}`);

/** Returns everything that can be opened or done, as a list of `{kind, label, run}`. */
function entries({ views, refresh, theme, leave, help }) {
  const found = views.map(({ name, title }) => ({ kind: "View", label: title, run: go(`#/${name}`) }));
  const add = (kind, label, run) => found.push({ kind, label, run });
  for (const tool of known.tool) add("Tool", tool, of("tool", { name: tool }));
  for (const limit of known.limit) add("Limit", limit, of("limit", { name: limit }));
  for (const tenant of known.tenant) add("Tenant", `${tenant}: turns`, of("turns", { tenant }));
  for (const agent of known.agent) add("Agent", `${agent}: turns`, of("turns", { agent }));
  for (const node of live.fleet?.nodes ?? []) if (node.kind === "worker") add("Worker", workerOf(node.name), of("worker", { name: workerOf(node.name) }));
  if (may("operate")) {
    const { tenant: own } = whoami();
    for (const tenant of known.tenant) add("Action", `Pause tenant ${tenant} …`, () => pause({ tenant }, refresh));
    for (const agent of known.agent) add("Action", `Cancel all queued turns of ${agent} …`, () => cancelAll({ kind: "turn", wanted: { agent, state: "throttled", tenant: own }, refresh }));
    for (const tool of known.tool) {
      add("Action", `Pause tool ${tool} …`, () => pause({ tool, tenant: own }, refresh));
      if (mayFleet()) add("Action", `Disable tool ${tool} …`, () => switchTool(tool, false, refresh));
    }
  }
  add("Action", "Light or dark", theme);
  add("Action", "Copy the link of this view", () => navigator.clipboard.writeText(location.href));
  add("Action", "Keyboard shortcuts", help);
  add("Action", "Sign out", () => leave(""));
  return found;
}

function matching(text, all) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return all.filter((one) => one.kind === "View");
  const rank = (one) => {
    const label = `${one.label} ${one.kind}`.toLowerCase();
    if (!words.every((word) => label.includes(word))) return -1;
    return (one.label.toLowerCase().startsWith(words[0]) ? 100 : 0) + (words.every((word) => label.split(/[\s:_-]+/).some((part) => part.startsWith(word))) ? 50 : 0) - one.label.length / 100;
  };
  const found = all.map((one) => [rank(one), one]).filter(([number]) => number >= 0).sort((one, other) => other[0] - one[0]).map(([, one]) => one);
  const open = { kind: "Open", label: text, run: of("find", { id: text }) };
  if (/\s/.test(text)) return found;
  // A text with a digit or a colon is probably an id, so the entry for the id comes first.
  return /[:\d]/.test(text) && !found.some((one) => one.label === text) ? [open, ...found] : [...found, open];
}

export class Find extends Component {
  constructor(given) {
    super(given);
    this.state = { text: "", at: 0, isOpen: false };
  }

  render(given, { text, at, isOpen }) {
    const found = isOpen ? matching(text.trim(), entries(given)).slice(0, SHOWN) : [];
    const run = (one) => {
      this.setState({ text: "", at: 0, isOpen: false });
      this.element.querySelector("input").blur();
      one.run();
    };
    const press = (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        this.setState({ isOpen: true, at: (at + (event.key === "ArrowDown" ? 1 : -1) + found.length) % Math.max(1, found.length) });
      } else if (event.key === "Escape") {
        this.setState({ isOpen: false, text: "" });
        event.target.blur();
      }
    };
    const submit = (event) => {
      event.preventDefault();
      const now = matching(text.trim(), entries(given)).slice(0, SHOWN);
      if (text.trim() || isOpen) run(now[Math.min(at, now.length - 1)] ?? { run: of("find", { id: text.trim() }) });
    };
    return h("form", { ref: (element) => { this.element = element; }, id: "find", role: "search", "aria-label": "Find", onSubmit: submit },
      h("input", {
        id: "find-id", type: "text", value: text, placeholder: "Find a turn, task, tool, action …", autocomplete: "off", spellcheck: false,
        role: "combobox", "aria-label": "Find a turn, task or approval by its id, a view, or an action", "aria-expanded": isOpen ? "true" : "false", "aria-controls": "find-list", "aria-autocomplete": "list",
        "aria-activedescendant": isOpen && found.length ? `find-${at}` : undefined,
        onInput: (event) => this.setState({ text: event.target.value, at: 0, isOpen: true }), onFocus: () => this.setState({ isOpen: true, at: 0 }),
        onBlur: () => this.setState({ isOpen: false }), onKeyDown: press,
      }),
      h("kbd", { "aria-hidden": "true" }, "Ctrl K"),
      h("button", {}, "Find"),
      h("ul", { id: "find-list", role: "listbox", "aria-label": "Found", hidden: !isOpen || !found.length },
        found.map((one, number) => h("li", {
          key: `${one.kind} ${one.label}`, id: `find-${number}`, role: "option", "aria-selected": number === at ? "true" : "false",
          onMouseDown: (event) => { event.preventDefault(); run(one); },
        }, h("span", { class: "kind" }, one.kind), h("span", {}, one.label)))));
  }
}

/** Handles the keyboard shortcuts of the page. */
export function keys({ help, refresh }) {
  let isGoing = false;
  const rows = () => [...document.querySelectorAll("main tbody tr")];
  const move = (by) => {
    const all = rows();
    const here = all.indexOf(document.activeElement?.closest("tr"));
    const row = all[Math.max(0, Math.min(all.length - 1, here < 0 ? (by > 0 ? 0 : all.length - 1) : here + by))];
    (row?.querySelector("a, summary") ?? row?.querySelector("button, input"))?.focus();
    row?.scrollIntoView({ block: "nearest" });
  };
  addEventListener("keydown", (event) => {
    if (event.key === "k" && (event.ctrlKey || event.metaKey) && whoami() && !page.dialog) {
      event.preventDefault();
      document.getElementById("find-id")?.select();
      document.getElementById("find-id")?.focus();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || page.dialog || !whoami()) return;
    if (event.target.matches?.("input:not([type=checkbox]), select, textarea")) return;
    if (isGoing) {
      isGoing = false;
      const view = { o: "overview", t: "turns", a: "approvals", d: "dead", w: "workers", l: "limits" }[event.key];
      if (view) location.hash = `#/${view}`;
      return;
    }
    const known_ = {
      j: () => move(1), k: () => move(-1), r: refresh, "?": help, g: () => { isGoing = true; },
      x: () => document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
      "/": () => (document.querySelector(".filters input, .filters select") ?? document.getElementById("find-id"))?.focus(),
    };
    if (!Object.hasOwn(known_, event.key)) return;
    event.preventDefault();
    known_[event.key]();
  });
}
