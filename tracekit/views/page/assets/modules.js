// Layer types, and the table of modules.

let moduleTable = null;
let longestSelf = 1; // the time of the longest bar in the table
const FIRST_TYPES = 12;

// The time of a type in the phase that is shown.
function typeTime(type) {
  return selection.phase ? type[`self_${selection.phase}_ns`] : type.self_ns;
}

function drawTypes() {
  const timed = TYPES.filter(typeTime).sort((left, right) => typeTime(right) - typeTime(left));
  const whole = TREES.modules.all.subtree_ns;
  const list = timed.slice(0, FIRST_TYPES).map((type) => el("li", {}, swatch(TYPE_TONES[TYPES.indexOf(type)]),
    el("button", { type: "button", class: "path link", title: "Search for this type", onclick: () => searchFor(typeName(type)) }, typeName(type)),
    bar(typeTime(type) / typeTime(timed[0]), TYPE_TONES[TYPES.indexOf(type)]),
    el("span", { class: "figures" }, `${percent(shareOf(typeTime(type), whole))} \u00b7 ${duration(typeTime(type))} \u00b7 ${counted(type.modules, "module")}`)));
  const others = timed.length - list.length;
  const more = others > 0 ? el("p", { class: "muted" }, `${counted(others, "more type")} with less time`) : null;
  byId("types").hidden = !timed.length;
  byId("types-place").replaceChildren(...[el("ul", { class: "types" }, ...list), more].filter(Boolean));
}

function addTypes() {
  if (!TYPES.some((type) => type.self_ns)) return;
  section("types", el("div", { id: "types-place" }));
  onSelected(drawTypes);
  drawTypes();
}

function moduleCell(node) {
  const copies = node.copies > 1 ? el("span", { class: "times" }, `${grouped(node.copies)} \u00d7`) : null;
  const path = el("button", { type: "button", class: "path link", onclick: () => select(node) }, ...breakable(node.path));
  return el("div", { class: "named" }, swatch(toneOf(node)), el("div", {}, path, copies, className(node) ? el("span", { class: "muted" }, ` ${className(node)}`) : null));
}

// What is known only of all phases together is hidden while one is shown.
const ONE_PHASE = () => selection.phase !== null;
const LINES_ONLY = () => selection.mode !== "lines";
const LINES_OF_ALL = () => LINES_ONLY() || ONE_PHASE();
const MODULES_OF_ALL = () => selection.mode !== "modules" || ONE_PHASE();
const NO_STEPS = () => MODULES_OF_ALL() || !DATA.about.steps.length;
const NO_LAUNCHES = () => !DATA.launched.launches || ONE_PHASE();

const MODULE_COLUMNS = [
  { name: "module", title: "module", of: (node) => node.path, cell: moduleCell },
  { name: "self_ns", title: "self", number: true, of: (node) => node.self_ns, help: "without submodules; the longest bar has the most",
    cell: (node) => el("span", { class: "share" }, duration(node.self_ns), phaseBar(node, "self_ns", longestSelf)) },
  { name: "self_share", title: "self share", number: true, of: (node) => node.selfShare, as: percent, help: `of all ${WORDS.device} time that is shown` },
  { name: "subtree_ns", title: "subtree", number: true, of: (node) => node.subtree_ns, as: duration, help: "self plus submodules" },
  { name: "share", title: "subtree share", number: true, of: (node) => node.share, as: percent, help: `of all ${WORDS.device} time that is shown` },
  ...PHASES.filter((phase, at) => TREES.modules.nodes.some((node) => node.times[at].subtree_ns)).map((phase) => ({ name: `${phase}_ns`, title: phase, number: true, of: (node) => node.times[PHASES.indexOf(phase)].subtree_ns, as: duration, hidden: ONE_PHASE, help: "of the subtree" })),
  { name: "modules", title: "modules", number: true, of: (node) => node.modules, as: integer, hidden: LINES_ONLY, help: "modules folded into this line" },
  { name: "calls", title: "calls", number: true, of: (node) => node.calls, as: integer, hidden: ONE_PHASE },
  { name: "kernels", title: WORDS.works, number: true, of: (node) => node.kernels, as: integer, hidden: ONE_PHASE, help: "of the module itself, without submodules" },
  { name: "median_ns", title: "median each", number: true, of: (node) => (node.modules > 1 ? node.median_ns : null), as: duration, hidden: LINES_OF_ALL },
  { name: "spread", title: "spread", number: true, of: (node) => (node.modules > 1 && node.median_ns ? (node.max_ns - node.min_ns) / node.median_ns : null), as: percent,
    hidden: LINES_OF_ALL, help: "(max \u2212 min) / median" },
  { name: "busy_ns", title: "busy", number: true, of: (node) => node.busy_ns, as: duration, hidden: MODULES_OF_ALL, help: "concurrent work counts once" },
  { name: "step_median_ns", title: "step median", number: true, of: (node) => node.step_median_ns, as: duration, hidden: NO_STEPS },
  { name: "step_p95_ns", title: "step p95", number: true, of: (node) => node.step_p95_ns, as: duration, hidden: NO_STEPS },
  { name: "launch_bound", title: "launch-bound", number: true, of: (node) => (node.launched_ns ? node.launch_bound_ns / node.launched_ns : null), as: percent, hidden: NO_LAUNCHES,
    help: "share of the GPU time that the subtree launched" },
];

function searched(mode) {
  return TREES[mode].nodes.filter((node) => !search.query || selection.node.tree.root !== "modules" || matches(search.query, `${node.path} ${className(node)}`));
}

function drawModules() {
  const { node, mode } = selection;
  const inside = (module) => node.kind === "all" || node.holds(module.index);
  const rows = searched(mode).filter(inside);
  const single = mode === "lines" && search.query && !rows.length ? searched("modules").length : 0;
  const note = [node.kind === "all" ? "" : `inside ${node.path}`, search.query && `matching ${search.query}`, selection.phase].filter(Boolean).join(", ");
  longestSelf = TREES[mode].nodes.reduce((most, module) => Math.max(most, module.self_ns), 1);
  moduleTable.setRows(rows, note);
  byId("unfold-place").replaceChildren(...(single ? [el("button", { type: "button", onclick: unfold }, `Show ${counted(single, "matching single module")}`)] : []));
  byId("everywhere-place").replaceChildren(...(node.kind === "all" ? [] : [el("button", { type: "button", onclick: () => select(node.tree.all) }, inWords("Show all modules"))]));
}

function unfold() {
  select(selection.node.tree.all);
  setFold(false);
}

function addModules() {
  if (!TREES.modules.nodes.length) return;
  moduleTable = new SortedTable({ id: "modules-table", caption: "Modules by self time", columns: MODULE_COLUMNS, sort: "self_ns",
    rowProperties: (node) => ({ class: node === selection.node ? "chosen" : null }) });
  const hidden = DATA.about.rows.modules - TREES.modules.nodes.length;
  const more = hidden ? [el("p", { class: "muted" }, `${counted(hidden, "module")} with the least time not listed: see tracekit show modules.`)] : [];
  section("modules", el("div", { class: "tools" }, el("span", { id: "unfold-place" }), el("span", { id: "everywhere-place" })), moduleTable.element, ...more);
  onSelected(drawModules);
  drawModules();
}
