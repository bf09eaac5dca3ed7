import { ask, whoami } from "../api.js";
import { count } from "../format.js";
import { empty, field, h, keepInLink, table } from "../ui.js";

const short = (digest) => digest.slice(0, 12);

function inForce(found) {
  const differ = found.in_force.map((digest, shard) => [digest, shard]).filter(([digest]) => digest && digest !== found.digest);
  return [h("p", {}, "Policy ", h("code", {}, short(found.digest)), differ.length ? "" : ": the policy in force."),
    differ.map(([digest, shard]) => h("p", { key: shard, class: "doubt" }, `Shard ${shard} uses policy ${short(digest)}, not the policy shown here.`))];
}

const settings = (rows, isAll) => table({ caption: isAll ? "All settings" : "Settings that differ from their defaults", rows, key: (setting) => setting.name, csv: true, columns: [
  { name: "Setting", value: (setting) => setting.name, cell: (setting) => h("code", {}, setting.name) }, { name: "Value", class: "long", value: (setting) => setting.value, cell: (setting) => h("code", {}, setting.value) }, { name: "From", value: (setting) => setting.origin },
] });

const file = (one) => h("details", { key: one.name, class: "card" }, h("summary", {}, one.name), h("pre", { tabindex: 0, "aria-label": one.name }, one.text), one.whole ? null : h("p", { class: "doubt" }, `The first part of ${count(one.bytes)} bytes.`));

export const config = {
  title: "Configuration",
  open: (query) => {
    if (whoami().tenant) return { load: async () => null, draw: () => h("p", {}, "The configuration covers the whole fleet and needs a key for all tenants. Limits shows the limits of this tenant.") };
    const isAll = () => query.get("all") === "yes";
    return {
      every_ms: 30_000,
      bar: () => h("div", { class: "filters" }, field("Settings", { name: "which", onChange: (event) => keepInLink({ all: event.target.value }) },
        h("option", { value: "", selected: !isAll() }, "different from the default"), h("option", { value: "yes", selected: isAll() }, "all"))),
      load: () => ask("config"),
      draw: (found) => {
        const shown = found.settings.filter((setting) => isAll() || !setting.is_default);
        return [
          found.problem ? h("p", { class: "bad", role: "alert" }, `The files cannot be read; the last version read is in use: ${found.problem}`) : null,
          inForce(found),
          found.warnings.length ? h("ul", {}, found.warnings.map((warning) => h("li", { key: warning.place + warning.field, class: "doubt" }, `${warning.place}: ${warning.field}: ${warning.message}`))) : null,
          shown.length ? settings(shown, isAll()) : empty("All settings have their defaults."),
          h("h2", {}, "Policy in force"), found.files.map(file),
        ];
      },
    };
  },
};
