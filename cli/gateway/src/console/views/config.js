// The configuration as the gateway reads it: the policy files, and each setting with its source.

import { ask, whoami } from "../api.js";
import { field, h, table } from "../dom.js";

const short = (digest) => digest.slice(0, 12);

function inForce(found) {
  const differ = found.in_force.map((digest, shard) => [digest, shard]).filter(([digest]) => digest && digest !== found.digest);
  const doubts = differ.map(([digest, shard]) => h("p", { class: "doubt" }, `Shard ${shard} uses policy ${short(digest)}, not the policy shown here.`));
  return [h("p", {}, "Policy ", h("code", {}, short(found.digest)), doubts.length ? "" : ": the policy in force."), ...doubts];
}

const settings = (found, isAll) => table(isAll ? "All settings" : "Settings that differ from their defaults", [
  ["Setting", (setting) => h("code", {}, setting.name)],
  ["Value", (setting) => h("code", {}, setting.value)],
  ["From", (setting) => setting.origin],
], found);

const file = (one) => h("details", { id: `file-${one.name}`, class: "card" },
  h("summary", {}, one.name), h("pre", { tabindex: "0", "aria-label": one.name }, one.text),
  one.whole ? null : h("p", { class: "doubt" }, `The first part of ${one.bytes} bytes.`));

function fleet() {
  let isAll = false;
  const choice = field("Settings", { name: "which", change: (event) => { isAll = event.target.value === "all"; view.refresh(); } },
    h("option", { value: "changed" }, "different from the default"), h("option", { value: "all" }, "all"));
  const view = {
    still: h("div", { class: "row" }, choice),
    load: () => ask("config"),
    draw: (found) => {
      const shown = found.settings.filter((setting) => isAll || !setting.is_default);
      const warnings = found.warnings.map((warning) => h("li", { class: "doubt" }, `${warning.place}: ${warning.field}: ${warning.message}`));
      return [
        found.problem ? h("p", { class: "bad", role: "alert" }, `The files cannot be read; the last version read is in use: ${found.problem}`) : null,
        ...inForce(found),
        warnings.length ? h("ul", {}, warnings) : null,
        shown.length ? settings(shown, isAll) : h("p", {}, "All settings have their defaults."),
        h("h2", {}, "Policy in force"),
        ...found.files.map(file),
      ];
    },
  };
  return view;
}

const ofTenant = {
  load: async () => null,
  draw: () => h("p", {}, "The configuration covers the whole fleet and needs a key for all tenants. Limits shows the limits of this tenant."),
};

export const config = {
  title: "Configuration",
  open: (_, refresh) => (whoami().tenant ? { ...ofTenant } : Object.assign(fleet(), { refresh })),
};
