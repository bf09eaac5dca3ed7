// Calls that wait for approval.

import { ask, may, whoami, withQuery } from "../api.js";
import { clock, confirm, field, fromNow, h, reasonField, say, storyLink } from "../dom.js";
import { parse, write } from "../json.js";

const needed = ({ approvers, roles }) => {
  const who = roles.length ? `of ${roles.join(", ")}` : approvers === 1 ? "approver of any role" : "approvers of any role";
  return `${approvers} ${who}`;
};
const nameOf = (approval) => `${approval.tenant}:${approval.id}`;

/** New values of arguments that may be changed. An empty field leaves its argument unchanged. */
function changes(approval, data) {
  const set = {};
  for (const pointer of approval.may_narrow) {
    const text = (data.get(`set ${pointer}`) ?? "").trim();
    if (!text) continue;
    try {
      set[pointer] = parse(text);
    } catch {
      set[pointer] = text;
    }
  }
  return set;
}

/** Shows an approval with its complete arguments and decides it. The list has only a short form of the arguments. */
async function decide(listed, agrees, refresh) {
  const name = nameOf(listed);
  const approval = await ask(`approvals/${encodeURIComponent(name)}`).catch((error) => void say(error.message));
  if (!approval) return;
  const verb = agrees ? "approve" : "deny";
  const act = async (data) => {
    const body = { reason: data.get("reason") };
    if (agrees) Object.assign(body, { set: changes(approval, data), narrowed: approval.narrowed ?? null });
    const counted = await ask(`approvals/${encodeURIComponent(name)}/${verb}`, { method: "POST", body });
    say(counted.missing ? `${name}: approval recorded; ${counted.missing} more needed` : `${name} is ${counted.state}`);
  };
  const narrow = agrees ? approval.may_narrow.map((pointer) => field(`New value for ${pointer} (empty: unchanged)`, { name: `set ${pointer}` })) : [];
  const text = `${approval.agent} calls ${approval.tool}. You decide as ${whoami().approver}.`;
  const shown = [shownArguments(approval, "an approver role or the gateway's configuration is missing"), changed(approval)];
  const title = agrees ? `Approve ${name}?` : `Deny ${name}?`;
  const button = agrees ? "Approve" : "Deny";
  if (await confirm({ title, text, fields: [...shown.flat(), ...narrow, reasonField(!agrees)], button, act })) refresh();
}

/** The arguments, and a note if they are shortened. */
function shownArguments(approval, why) {
  const cut = approval.arguments_exact ? null
    : h("p", { class: "bad" }, `Shortened: secrets are removed and long texts cut (${approval.arguments_bytes} bytes in full; ${why}).`);
  return [h("pre", {}, write(approval.arguments, 2)), cut];
}

const changed = (approval) => (approval.narrowed
  ? [h("p", {}, "Changed by another approver:"), h("pre", {}, write(approval.narrowed, 2))] : []);

function buttons(approval, refresh) {
  if (approval.state !== "waiting" || !may("approve")) return null;
  const button = (agrees, word, kind) => h("button", {
    class: kind, id: `${word}-${approval.id}`, "aria-label": `${word} ${nameOf(approval)}`, click: () => decide(approval, agrees, refresh),
  }, word);
  return h("div", { class: "row" }, button(true, "Approve", "act"), button(false, "Deny"));
}

/** One approval and its actions. */
export function card(approval, nowMs, refresh) {
  const said = approval.agreed.map((one) => `${one.by} agreed${one.reason ? `: ${one.reason}` : ""}`);
  if (approval.denied) said.push(`${approval.denied.by} denied it: ${approval.denied.reason}`);
  const turn = approval.call.replace(/\/[^/]*$/, "");
  return h("section", { class: "card", "aria-label": `Approval ${nameOf(approval)}` },
    h("h2", {}, `${approval.agent} calls ${approval.tool}`),
    h("p", {}, "Approval ", storyLink(nameOf(approval)), ": ", h("strong", {}, approval.state), ", for ", storyLink(`${approval.tenant}:${turn}`)),
    shownArguments(approval, "approvers see all arguments before they decide"),
    changed(approval),
    h("p", {}, `Required by ${approval.asked_by.map((one) => `${one.place} (${one.why})`).join("; ")}. Needs ${approval.needs.map(needed).join(" and ")}.`),
    said.length ? h("ul", {}, said.map((line) => h("li", {}, line))) : null,
    h("p", { class: "soft" }, `Requested ${clock(approval.asked_ms)}; expires ${clock(approval.until_ms)} (${fromNow(approval.until_ms, nowMs)})`),
    buttons(approval, refresh));
}

const NAMES = ["tenant", "agent", "tool", "older_than_s"];

function filters(query) {
  const enter = (event) => {
    event.preventDefault();
    location.hash = `#/${withQuery("approvals", Object.fromEntries(new FormData(event.target)))}`;
  };
  const input = (label, name, more) => field(label, { name, value: query.get(name) ?? "", ...more });
  return h("form", { class: "row", "aria-label": "Which approvals", submit: enter }, input("Tenant", "tenant"), input("Agent", "agent"),
    input("Tool", "tool"), input("Older than (s)", "older_than_s", { type: "number", min: 0 }), h("button", {}, "Show"));
}

function draw({ approvals: found, next, now_ms }, view, refresh) {
  const more = next ? h("button", { id: "more-approvals", click: () => { view.from = next; refresh(); } }, "Next page") : null;
  const first = view.from ? h("button", { id: "first-approvals", click: () => { view.from = undefined; refresh(); } }, "Ending soonest first") : null;
  return [
    may("approve") ? null : h("p", { class: "soft" }, "This key is read-only: it may not decide."),
    found.length ? found.map((one) => card(one, now_ms, refresh)) : h("p", {}, "No approvals waiting."),
    h("div", { class: "row" }, first, more),
  ].flat();
}

export const approvals = {
  title: "Approvals",
  open: (query) => {
    const view = { still: filters(query), every_ms: 3000 };
    const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
    view.load = () => ask(withQuery("approvals", { ...wanted, limit: 100, from: view.from }));
    view.draw = (page, refresh) => draw(page, view, refresh);
    return view;
  },
};
