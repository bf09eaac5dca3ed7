// What was put aside, by its cause; and what is done with all that a filter finds, page by page.

import { ask, withQuery } from "../api.js";
import { confirm, fromNow, h, reasonField, say, table } from "../dom.js";

// What one request replays or drops.
const PAGE = 100;

/** The causes of a filter: each leads to the list of its own. */
export function byCause(page, view, wanted, refresh) {
  const listed = (cause) => withQuery("dead", { ...wanted, kind: cause.kind, cause: cause.cause, tool: cause.tool, told: cause.told });
  const columns = [
    ["Count", (cause) => cause.count, true], ["Kind", (cause) => cause.kind],
    ["Cause", (cause) => h("a", { href: `#/${listed(cause)}`, id: `cause-${cause.example}` }, cause.cause)],
    ["Tool", (cause) => cause.tool], ["Told", (cause) => cause.told],
    ["Newest", (cause) => fromNow(cause.newest_ms, page.now_ms)], ["Oldest", (cause) => fromNow(cause.oldest_ms, page.now_ms)],
    ["As they are", (cause) => cause.as_they_are, true], ["Tenants", (cause) => cause.tenants.join(", ")],
  ];
  const next = page.next ? h("button", { id: "more-causes", click: () => { view.from = page.next; refresh(); } }, "Read on") : null;
  const first = view.from ? h("button", { id: "first-causes", click: () => { view.from = undefined; refresh(); } }, "From the newest") : null;
  return [
    page.causes.length ? table(`${page.causes.length} causes${page.next || view.from ? " in this part of the log" : ""}`, columns, page.causes) : h("p", {}, "Nothing of that kind was put aside here."),
    h("p", { class: "soft" }, `${page.read} entries were read.${page.others ? ` ${page.others} more have other causes: narrow the list down.` : ""}`),
    h("div", { class: "row" }, next, first),
  ];
}

/** Asks for one page after the other, and has each handled, until the last or until somebody stops it. */
async function each(wanted, before_ms, isStopped, handle) {
  let from;
  do {
    const page = await ask(withQuery("dead", { ...wanted, before_ms, limit: PAGE, from }));
    if (page.dead.length) await handle(page.dead.map((one) => one.id));
    from = page.next;
  } while (from && !isStopped());
}

/** A button that replays or drops all that the filter finds; `tell` says what came of it. */
export function allButton({ id, path, verb, button, text }, { wanted, page, tell, refresh }) {
  const open = async () => {
    let stopped = false;
    const stop = h("button", { type: "button", hidden: true, click: () => (stopped = true) }, "Stop behind this page");
    const act = async (data) => {
      const done = [];
      stop.hidden = false;
      // What fails anew meanwhile is not replayed again and again.
      await each(wanted, page.now_ms + 1, () => stopped, async (ids) => {
        done.push(...(await ask(path, { method: "POST", body: { ids, reason: data.get("reason") } })));
        say(`${done.length} so far …`);
      });
      tell(done, verb);
    };
    const some = page.dead.slice(0, 5).map((one) => one.id).join(", ");
    const shown = `All that the filter finds: ${page.dead.length}${page.next ? " on this page, and maybe more" : ""}, as ${some}. ${text}`;
    if (await confirm({ title: `${button}?`, text: shown, fields: [reasonField(), stop], button, act })) refresh();
  };
  return h("button", { id, disabled: !page.dead.length, click: open }, `${button} …`);
}
