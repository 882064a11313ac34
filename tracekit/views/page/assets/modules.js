// Layer types, and the table of modules.

let moduleTable = null;
let moduleQuery = "";

function addTypes() {
  const rows = TYPES.filter((type) => type.self_ns).slice(0, 12);
  if (!rows.length) return;
  const most = rows[0].self_ns;
  const list = rows.map((type) => el("li", {}, swatch(TYPE_TONES[TYPES.indexOf(type)]),
    el("button", { type: "button", class: "path link", title: "Search for this type", onclick: () => searchFor(typeName(type)) }, typeName(type)),
    bar(type.self_ns / most, TYPE_TONES[TYPES.indexOf(type)]),
    el("span", { class: "figures" }, `${percent(type.self_share)} \u00b7 ${duration(type.self_ns)} \u00b7 ${counted(type.modules, "module")}`)));
  const others = TYPES.filter((type) => type.self_ns).length - rows.length;
  const more = others > 0 ? [el("p", { class: "muted" }, `${counted(others, "more type")} with less time`)] : [];
  section("types", el("ul", { class: "types" }, ...list), ...more);
}

// The type of numbered modules is named layers.*: search for layers.
function searchFor(type) {
  const field = byId("search-modules");
  field.value = type.replace(/\.\*$/, ".");
  field.dispatchEvent(new Event("input"));
  byId("modules").scrollIntoView();
  field.focus({ preventScroll: true });
}

function moduleCell(node) {
  const copies = node.copies > 1 ? el("span", { class: "times" }, `${grouped(node.copies)} \u00d7`) : null;
  const path = el("button", { type: "button", class: "path link", onclick: () => select(node) }, ...breakable(node.path));
  return el("div", { class: "named" }, swatch(toneOf(node)), el("div", {}, path, copies, className(node) ? el("span", { class: "muted" }, ` ${className(node)}`) : null));
}

const LINES_ONLY = () => selection.mode !== "lines";
const MODULES_ONLY = () => selection.mode !== "modules";
const NO_STEPS = () => MODULES_ONLY() || !DATA.about.steps.length;
const NO_LAUNCHES = () => !DATA.launched.launches;

const MODULE_COLUMNS = [
  { name: "module", title: "module", of: (node) => node.path, cell: moduleCell },
  { name: "modules", title: "modules", number: true, of: (node) => node.modules, as: integer, hidden: LINES_ONLY, help: "modules folded into this line" },
  { name: "calls", title: "calls", number: true, of: (node) => node.calls, as: integer },
  { name: "kernels", title: WORDS.works, number: true, of: (node) => node.kernels, as: integer, help: "of the module itself, without submodules" },
  { name: "self_ns", title: "self", number: true, of: (node) => node.self_ns, as: duration, help: "without submodules" },
  { name: "inclusive_ns", title: "subtree", number: true, of: (node) => node.inclusive_ns, as: duration, help: "self plus submodules" },
  { name: "share", title: `${WORDS.device} share`, number: true, of: (node) => node.share,
    cell: (node) => el("span", { class: "share" }, percent(node.share), bar(node.share)) },
  { name: "median_ns", title: "median each", number: true, of: (node) => (node.modules > 1 ? node.median_ns : null), as: duration, hidden: LINES_ONLY },
  { name: "spread", title: "spread", number: true, of: (node) => (node.modules > 1 && node.median_ns ? (node.max_ns - node.min_ns) / node.median_ns : null), as: percent,
    hidden: LINES_ONLY, help: "(max \u2212 min) / median" },
  { name: "busy_ns", title: "busy", number: true, of: (node) => node.busy_ns, as: duration, hidden: MODULES_ONLY, help: "concurrent work counts once" },
  { name: "step_median_ns", title: "step median", number: true, of: (node) => node.step_median_ns, as: duration, hidden: NO_STEPS },
  { name: "step_p95_ns", title: "step p95", number: true, of: (node) => node.step_p95_ns, as: duration, hidden: NO_STEPS },
  { name: "launch_bound", title: "launch-bound", number: true, of: (node) => (node.launched_ns ? node.launch_bound_ns / node.launched_ns : null), as: percent, hidden: NO_LAUNCHES,
    help: "share of the GPU time that the subtree launched" },
];

function searched(mode) {
  return TREES[mode].nodes.filter((node) => !moduleQuery || matches(moduleQuery, `${node.path} ${className(node)}`));
}

function drawModules() {
  const { node, mode } = selection;
  const inside = (module) => node.kind === "all" || node.holds(module.index);
  const rows = searched(mode).filter(inside);
  const single = mode === "lines" && moduleQuery && !rows.length ? searched("modules").length : 0;
  const note = node.kind === "all" ? "" : `inside ${node.path}`;
  moduleTable.setRows(rows, note);
  byId("unfold-place").replaceChildren(...(single ? [el("button", { type: "button", onclick: unfold }, `Show ${counted(single, "matching single module")}`)] : []));
  byId("everywhere-place").replaceChildren(...(node.kind === "all" ? [] : [el("button", { type: "button", onclick: () => select(node.tree.all) }, "Show all modules")]));
}

function unfold() {
  select(selection.node.tree.all);
  byId("fold").checked = false;
  setMode("modules");
}

function addModules() {
  if (!TREES.modules.nodes.length) return;
  moduleTable = new SortedTable({ id: "modules-table", caption: "Modules by time", columns: MODULE_COLUMNS, sort: "inclusive_ns",
    rowProperties: (node) => ({ class: node === selection.node ? "chosen" : null }) });
  const field = searchField("Search modules: path or class", "search-modules", (query) => { moduleQuery = query; drawModules(); });
  const hidden = DATA.about.rows.modules - TREES.modules.nodes.length;
  const more = hidden ? [el("p", { class: "muted" }, `${counted(hidden, "module")} with the least time not listed: see tracekit show modules.`)] : [];
  section("modules", el("div", { class: "tools" }, field, el("span", { id: "unfold-place" }), el("span", { id: "everywhere-place" })), moduleTable.element, ...more);
  onSelected(drawModules);
  drawModules();
}
