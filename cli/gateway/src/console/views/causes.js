// Dead letters by cause, and actions on all matches of a filter, page by page.

import { ask, withQuery } from "../api.js";
import { confirm, fromNow, h, reasonField, say, table } from "../dom.js";

// Entries per replay or drop request.
const PAGE = 100;

/** A link from a cause to its entries within a filter. Letters have no error message. */
function causeLink(cause, wanted) {
  const untold = cause.told || cause.kind === "letter" ? undefined : "true";
  const list = withQuery("dead", { ...wanted, kind: cause.kind, cause: cause.cause, tool: cause.tool, told: cause.told, untold });
  return h("a", { href: `#/${list}`, id: `cause-${cause.example}` }, cause.cause);
}

const LATELY = { since_s: 3600 };
const ERRORS_EVERY_MS = 60_000;

function errorsShown(page) {
  const columns = [
    ["Count", (cause) => cause.count, true], ["Kind", (cause) => cause.kind], ["Cause", (cause) => causeLink(cause, LATELY)],
    ["Tool", (cause) => cause.tool], ["Error", (cause) => cause.told], ["Newest", (cause) => fromNow(cause.newest_ms, page.now_ms)],
  ];
  const more = page.next ? ` The newest ${page.read} entries of the log were read.` : "";
  return [
    page.causes.length ? table("What failed most often in the last hour", columns, page.causes) : h("p", { class: "good" }, "No dead letters in the last hour."),
    h("p", { class: "soft" }, h("a", { href: `#/${withQuery("dead", { ...LATELY, by: "cause" })}` }, "All causes"), more),
  ];
}

/** The most frequent causes of the last hour, for the overview. A request reads the log, so one is sent per minute. */
export function errors() {
  const region = h("div", { id: "errors" }, h("p", { class: "soft" }, "Loading …"));
  let asked_ms = 0;
  return () => {
    if (Date.now() - asked_ms >= ERRORS_EVERY_MS) {
      asked_ms = Date.now();
      ask(withQuery("dead/causes", { ...LATELY, limit: 5 })).then(
        (page) => region.replaceChildren(...errorsShown(page)),
        (error) => region.replaceChildren(h("p", { class: "bad" }, error.message)),
      );
    }
    return region;
  };
}

/** The causes within a filter, each with a link to its entries. */
export function byCause(page, view, wanted, refresh) {
  const columns = [
    ["Count", (cause) => cause.count, true], ["Kind", (cause) => cause.kind], ["Cause", (cause) => causeLink(cause, wanted)],
    ["Tool", (cause) => cause.tool], ["Error", (cause) => cause.told],
    ["Newest", (cause) => fromNow(cause.newest_ms, page.now_ms)], ["Oldest", (cause) => fromNow(cause.oldest_ms, page.now_ms)],
    ["Replayable", (cause) => cause.as_they_are, true], ["Tenants", (cause) => cause.tenants.join(", ")],
  ];
  const next = page.next ? h("button", { id: "more-causes", click: () => { view.from = page.next; refresh(); } }, "Search further") : null;
  const first = view.from ? h("button", { id: "first-causes", click: () => { view.from = undefined; refresh(); } }, "From the newest") : null;
  return [
    page.causes.length ? table(`${page.causes.length} causes${page.next || view.from ? " in this part of the log" : ""}`, columns, page.causes) : h("p", {}, "No dead letters match."),
    h("p", { class: "soft" }, `Searched ${page.read} log entries.${page.others ? ` ${page.others} more have other causes: narrow the filter.` : ""}`),
    h("div", { class: "row" }, next, first),
  ];
}

/** Results that mean a lack of room: all further entries would fail in the same way. The command has the same list. */
const NO_ROOM = ["queue_full", "pressure", "full"];

/** Requests page after page and handles each. If it ends early, returns the reason; otherwise an empty text. */
async function each(wanted, before_ms, signal, handle) {
  let from;
  do {
    const page = await ask(withQuery("dead", { ...wanted, before_ms, limit: PAGE, from }));
    if (signal.aborted) return " Stopped: the rest is unchanged.";
    const answers = page.dead.length ? await handle(page.dead.map((one) => one.id)) : [];
    from = page.next;
    if (from && answers.some(({ answer }) => NO_ROOM.includes(answer))) return " It stopped there: replay the rest later.";
  } while (from);
  return "";
}

/** A button that replays or drops all matches of the filter. `told` describes the results. */
export function allButton({ id, path, verb, button, text }, { wanted, page, told, refresh }) {
  const open = async () => {
    let handled = 0;
    const act = async (data, { signal, show }) => {
      const done = [];
      const handle = async (ids) => {
        const answers = await ask(path, { method: "POST", body: { ids, reason: data.get("reason") } });
        done.push(...answers);
        handled += answers.length;
        show(`${done.length} so far …`);
        return answers;
      };
      try {
        // Exclude entries that fail again during the loop. Otherwise, they would be replayed endlessly.
        const why = await each(wanted, page.now_ms + 1, signal, handle);
        say(`${told(done, verb)}${why}`);
      } catch (error) {
        // Earlier pages have been handled: report them with the error.
        throw done.length ? new Error(`${told(done, verb)} Then: ${error.message}`, { cause: error }) : error;
      }
    };
    const some = page.dead.slice(0, 5).map((one) => one.id).join(", ");
    const shown = `${page.dead.length} matches${page.next ? " on this page, and maybe more" : ""}, for example ${some}. ${text}`;
    const isDone = await confirm({ title: `${button}?`, text: shown, fields: [reasonField()], button, stop: "Stop after this page", act });
    if (isDone || handled) refresh();
  };
  return h("button", { id, disabled: !page.dead.length, click: open }, `${button} …`);
}
