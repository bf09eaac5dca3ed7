// Tools by outcome and time, over the last minute.

import { ask, whoami } from "../api.js";
import { h, span, table } from "../dom.js";

const outcomes = (row) => Object.entries(row.outcomes).map(([name, count]) => `${name} ${count}`).join(", ");

const fleet = {
  every_ms: 2000,
  is_fleet: true,
  load: () => ask("overview"),
  draw: ({ tools: found }) => {
    if (!found.rows.length) return h("p", {}, "No call has ended in the last minute.");
    const caption = `Calls of the last minute: ${found.seen}${found.sampled ? ", a sample of more" : ""}`;
    return table(caption, [
      ["Tool", (row) => row.tool], ["Calls", (row) => row.calls, true], ["Outcomes", outcomes],
      ["Mean", (row) => span(row.mean_ms), true], ["Longest", (row) => span(row.longest_ms), true],
    ], found.rows);
  },
};

const ofTenant = {
  load: async () => null,
  draw: () => h("p", {}, "These figures are of the whole fleet, for keys of all tenants. The audit log tells the calls of this tenant."),
};

export const tools = { title: "Tools", open: () => ({ ...(whoami().tenant ? ofTenant : fleet) }) };
