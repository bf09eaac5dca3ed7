import { act, ask, may, now, whoami, withQuery } from "../api.js";
import { collect, estimate } from "../actions.js";
import { fromNow, range, span } from "../format.js";
import { Digits, parse, write } from "../json.js";
import { AGENT, FROM, TENANT, TOOL, UNTIL, button, chip, confirm, copy, empty, field, filters, h, learn, pager, reasonField, say, storyLink, time } from "../ui.js";

const needed = ({ approvers, roles }) => `${approvers} ${roles.length ? `of ${roles.join(", ")}` : approvers === 1 ? "approver of any role" : "approvers of any role"}`;
const nameOf = (approval) => `${approval.tenant}:${approval.id}`;
const MOOD = { waiting: "doubt", approved: "good", used: "good", denied: "bad", expired: "bad", void: "bad" };

/** Returns the value at a JSON pointer. */
function at(value, pointer) {
  return pointer.split("/").slice(1).reduce((inner, part) => inner?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], value);
}

const isNumber = (value) => typeof value === "number" || value instanceof Digits;

function parsed(text) {
  try {
    return parse(text);
  } catch {
    return text;
  }
}

/** Returns true if `one` is at most `other`, compared with all digits. Returns undefined if either is not a number. */
export function isAtMost(one, other) {
  const read = (text) => /^(-?)(\d+)(?:\.(\d+))?$/.exec(text);
  const [small, large] = [read(String(one)), read(String(other))];
  if (!small || !large) return Number.isNaN(Number(one)) || Number.isNaN(Number(other)) ? undefined : Number(one) <= Number(other);
  const digits = Math.max((small[3] ?? "").length, (large[3] ?? "").length);
  const whole = (found) => BigInt(`${found[1]}${found[2]}${(found[3] ?? "").padEnd(digits, "0")}`);
  return whole(small) <= whole(large);
}

/** Returns the reason why a new value of an argument is not a reduction; undefined if it is one. */
export function notNarrower(pointer, old, text) {
  const value = parsed(text);
  const name = pointer.slice(1);
  const limit = isNumber(old) ? old : typeof old === "string" && /^-?\d+(\.\d+)?$/.test(old) ? old : undefined;
  if (limit !== undefined) {
    if (!isNumber(value)) return `${name}: expected a number, such as ${limit}.`;
    if (isAtMost(0, value) === false) return `${name}: expected 0 or more.`;
    if (isAtMost(value, limit) !== true) return `${name}: expected at most ${limit}, the requested value.`;
    return undefined;
  }
  if (Array.isArray(old)) {
    const left = old.map((one) => write(one));
    const isPart = Array.isArray(value) && value.every((one) => left.includes(write(one)) && left.splice(left.indexOf(write(one)), 1).length);
    return isPart ? undefined : `${name}: expected a list with members of ${write(old)} only.`;
  }
  if (old && typeof old === "object") {
    const isPart = value && typeof value === "object" && !Array.isArray(value) && Object.entries(value).every(([member, inner]) => Object.hasOwn(old, member) && write(old[member]) === write(inner));
    return isPart ? undefined : `${name}: expected an object with members of ${write(old)} only.`;
  }
  return write(value) === write(old) ? undefined : `${name}: this value cannot be reduced.`;
}

/** Returns the new values of arguments that may be changed. An empty field leaves its argument unchanged. */
function changes(approval, data) {
  const set = {};
  for (const pointer of approval.may_narrow) {
    const text = (data.get(`set ${pointer}`) ?? "").trim();
    const old = at(approval.narrowed ?? approval.arguments, pointer);
    if (text) set[pointer] = typeof old === "string" && isNumber(parsed(text)) ? text : parsed(text);
  }
  return set;
}

/** Shows an approval with its complete arguments, which the list shortens. Lets the user approve or deny the call. */
async function decide(listed, agrees, refresh) {
  const name = nameOf(listed);
  const approval = await ask(`approvals/${encodeURIComponent(name)}`).catch((error) => void say(error.message));
  if (!approval) return;
  const verb = agrees ? "approve" : "deny";
  const run = async (data) => {
    const body = { reason: data.get("reason") };
    if (agrees) Object.assign(body, { set: changes(approval, data), narrowed: approval.narrowed ?? null });
    const counted = await act(`approvals/${encodeURIComponent(name)}/${verb}`, body);
    say(counted.missing ? `${name}: approval recorded; ${counted.missing} more needed` : `${name} is ${counted.state}`);
  };
  const current = approval.narrowed ?? approval.arguments;
  const check = (data) => {
    for (const pointer of agrees ? approval.may_narrow : []) {
      const text = (data.get(`set ${pointer}`) ?? "").trim();
      const error = text && notNarrower(pointer, at(current, pointer), text);
      if (error) return error;
    }
    return undefined;
  };
  const narrow = agrees ? approval.may_narrow.map((pointer) => field(`New value for ${pointer} (empty: unchanged)`, { name: `set ${pointer}`, inputmode: isNumber(at(current, pointer)) ? "decimal" : undefined, placeholder: `at most ${write(at(current, pointer) ?? null)}` })) : [];
  const text = `${approval.agent} calls ${approval.tool}. You decide as ${whoami().approver}.`;
  const shown = [shownArguments(approval, "an approver role or the gateway's configuration is missing"), changed(approval)];
  const title = agrees ? `Approve ${name}?` : `Deny ${name}?`;
  const done = await confirm({ title, text, fields: [shown, narrow, reasonField(!agrees)], button: agrees ? "Approve" : "Deny", isDanger: !agrees, check, act: run });
  if (done) refresh();
}

/** Shows the arguments, and a note if they are shortened. */
function shownArguments(approval, why) {
  return [h("pre", {}, write(approval.arguments, 2)), approval.arguments_exact ? null
    : h("p", { class: "bad" }, `Shortened: secrets are removed and long texts cut (${approval.arguments_bytes} bytes in full; ${why}).`)];
}

// One action approves at most this many calls, because an approver must read all of them first.
const APPROVED_MAX = 200;

/**
 * Approves the calls that match a filter, after a preview of all their arguments. Leaves out calls whose arguments the
 * list shortens: approvers read these one by one.
 */
async function approveAll({ wanted, matches, refresh }) {
  const all = await collect("approvals", { wanted, matches: (one) => one.state === "waiting" && one.arguments_exact && matches(one), most: APPROVED_MAX });
  if (!all) return;
  const run = async (data, { signal, show }) => {
    let done = 0;
    const errors = new Map();
    for (const approval of all.found) {
      if (signal.aborted) break;
      const body = { reason: data.get("reason"), narrowed: approval.narrowed ?? null };
      await act(`approvals/${encodeURIComponent(nameOf(approval))}/approve`, body).catch((error) => errors.set(error.message, (errors.get(error.message) ?? 0) + 1));
      show(`${++done} of ${all.found.length} …`);
    }
    const failed = [...errors.values()].reduce((sum, number) => sum + number, 0);
    const rest = done < all.found.length ? ` Stopped: ${all.found.length - done} are unchanged.` : "";
    say(`${done - failed} of ${done} approved.${[...errors].map(([error, number]) => ` ${number} not: ${error.replace(/\.$/, "")}.`).join("")}${rest}`);
  };
  const row = (one) => h("li", { key: nameOf(one) }, `${nameOf(one)}: ${one.agent} calls ${one.tool} `, h("code", {}, write(one.narrowed ?? one.arguments)));
  const text = `${estimate(all, "calls", (one) => `${one.agent} ${one.tool}`)} You decide as ${whoami().approver}.`;
  const preview = h("div", { class: "all", tabindex: 0, role: "region", "aria-label": "Calls to approve" }, h("ul", { class: "sample" }, all.found.map(row)));
  if (await confirm({ title: "Approve all calls that match?", wide: true, text, fields: [preview, reasonField()], button: `Approve ${all.found.length}`, stop: "Stop after this call", act: run })) refresh();
}

const changed = (approval) => (approval.narrowed ? [h("p", {}, "Changed by another approver:"), h("pre", {}, write(approval.narrowed, 2))] : []);

function buttons(approval, refresh) {
  if (approval.state !== "waiting" || !may("approve")) return null;
  const one = (agrees, word, kind) => button(word, () => decide(approval, agrees, refresh), { class: kind, "aria-label": `${word} ${nameOf(approval)}` });
  return h("div", { class: "row" }, one(true, "Approve", "act"), one(false, "Deny"));
}

/** Draws one approval with its actions. */
export function approvalCard(approval, nowMs, refresh) {
  const said = approval.agreed.map((one) => `${one.by} agreed${one.reason ? `: ${one.reason}` : ""}`);
  if (approval.denied) said.push(`${approval.denied.by} denied it: ${approval.denied.reason}`);
  const turn = approval.call.replace(/\/[^/]*$/, "");
  const isWaiting = approval.state === "waiting";
  return h("section", { key: nameOf(approval), class: "card approval", "aria-label": `Approval ${nameOf(approval)}` },
    h("div", { class: "head" }, h("h2", {}, `${approval.agent} calls ${approval.tool}`), chip(MOOD[approval.state] ?? "", approval.state), h("span", { class: "soft" }, isWaiting ? `expires ${fromNow(approval.until_ms, nowMs)}` : "")),
    h("p", {}, storyLink(nameOf(approval)), copy(nameOf(approval)), " for ", storyLink(`${approval.tenant}:${turn}`)),
    h("dl", { class: "facts" }, Object.entries(approval.arguments ?? {}).slice(0, 8).map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, typeof value === "string" ? value : write(value))))),
    approval.arguments_exact ? null : h("p", { class: "bad" }, `Shortened: secrets are removed and long texts cut (${approval.arguments_bytes} bytes in full; approvers see all arguments before they decide).`),
    changed(approval),
    h("p", {}, `Required by ${approval.asked_by.map((one) => `${one.place} (${one.why})`).join("; ")}. Needs ${approval.needs.map(needed).join(" and ")}.`),
    said.length ? h("ul", {}, said.map((line) => h("li", { key: line }, line))) : null,
    h("p", { class: "soft" }, "Requested ", time(approval.requested_ms), ", expires ", time(approval.until_ms), `, after ${span(approval.until_ms - approval.requested_ms)}`),
    buttons(approval, refresh));
}

const wantedOf = (query) => ({ tenant: query.get("tenant"), agent: query.get("agent"), tool: query.get("tool") });
const FIELDS = [TENANT, AGENT, TOOL, FROM, UNTIL, { name: "text", label: "Text", help: "in the arguments", wide: true }];

function draw({ items: found, next, now_ms }, view, query, refresh) {
  const { from, until } = range(query, now());
  const text = (query.get("text") ?? "").toLowerCase();
  const matches = (one) => (!from || one.requested_ms >= from) && (!until || one.requested_ms <= until) && (!text || write(one.arguments).toLowerCase().includes(text) || nameOf(one).includes(text));
  const rows = found.filter(matches);
  return [
    may("approve") ? h("div", { class: "row actions" }, button("Approve all that match …", () => approveAll({ wanted: wantedOf(query), matches, refresh }), { disabled: !rows.length }))
      : h("p", { class: "soft" }, "This key is read-only: it may not decide."),
    rows.length ? h("div", { class: "cards" }, rows.map((one) => approvalCard(one, now_ms, refresh))) : empty("No approvals waiting."),
    pager(view, next, refresh, "Ending soonest first"),
  ];
}

export const approvals = {
  title: "Approvals",
  open: (query, refresh) => {
    const view = { every_ms: 3000, bar: () => filters("approvals", query, FIELDS) };
    view.load = async () => {
      const found = await ask(withQuery("approvals", { ...wantedOf(query), limit: 100, from: view.from }));
      learn({ tenant: found.items.map((one) => one.tenant), agent: found.items.map((one) => one.agent), tool: found.items.map((one) => one.tool) });
      return found;
    };
    view.draw = (found) => draw(found, view, query, refresh);
    return view;
  },
};
