// How modules changed since another dataset, in the icicle, and layer by layer.

const APART = { least: 14, most: 46, full: 0.5 }; // percent of the colour, and the change that has all of it
const differs = { shown: false };

function setChanges() {
  const { before_ns: before, change_ns: change } = DATA.changes.modules;
  const lines = DATA.nodes.modules.line;
  for (const node of TREES.modules.nodes) [node.before_ns, node.change_ns] = [before[node.index], change[node.index]];
  before.forEach((ns, at) => {
    const line = TREES.lines.nodes[lines[at]];
    if (ns === null || !line) return;
    line.before_ns = (line.before_ns ?? 0) + ns;
    line.change_ns = (line.change_ns ?? 0) + change[at];
  });
}

// The colour of what changed: stronger the more it did, and none if it did not by more than chance.
function changeColour(row) {
  if (!row.change_ns) return null;
  const apart = row.before_ns ? Math.min(Math.abs(row.change_ns) / row.before_ns / APART.full, 1) : 1;
  return `color-mix(in srgb, var(--${row.change_ns > 0 ? "worse" : "better"}) ${Math.round(APART.least + apart * (APART.most - APART.least))}%, var(--surface))`;
}

function relativeChange(row) {
  return row.before_ns ? signed(row.change_ns / row.before_ns, percent) : "new";
}

// A column for each layer: a table that tells them apart.
function layerTable() {
  const { names, rows } = DATA.changes.layers;
  if (!rows.length) return null;
  const cell = (layer) => {
    if (!layer) return el("td");
    const row = { before_ns: layer[0], change_ns: layer[1] };
    const colour = changeColour(row);
    return styled(el("td", { class: "number", title: colour ? changeText(row) : null }, colour ? relativeChange(row) : "\u00b7"), colour ? { background: colour } : {});
  };
  const head = ["per step", ...names].map((name) => el("th", { scope: "col" }, name));
  const body = rows.map((row) => el("tr", {}, el("th", { scope: "row", class: "path" }, ...breakable(row.path)), ...row.layers.map(cell)));
  return el("details", { open: true }, el("summary", {}, "Layer by layer"),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Changes layer by layer" },
      el("table", { class: "layers" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body))));
}

// Modules and kernels that only one of the datasets has, each with its time per step.
function cameAndWent() {
  const { lines } = DATA.changes;
  const kernels = new Map();
  for (const kernel of lines.flatMap((line) => line.kernels)) {
    const sums = kernels.get(kernel.name) ?? { name: kernel.name, before_ns: 0, after_ns: 0 };
    sums.before_ns += kernel.before_ns ?? 0;
    sums.after_ns += kernel.after_ns ?? 0;
    kernels.set(kernel.name, sums);
  }
  const modules = lines.filter((line) => line.status === "added" || line.status === "gone").map((line) => ({ ...line, name: line.path }));
  const all = [...modules, ...kernels.values()];
  const list = (title, rows, time) => (rows.length ? el("div", {}, el("h3", {}, title), el("ul", { class: "inside" },
    ...rows.sort((left, right) => time(right) - time(left)).slice(0, FIRST_CHANGES).map((row) => el("li", {}, el("span", { class: "path" }, ...breakable(row.name)), el("span", { class: "figures" }, timeText(time(row))))))) : null);
  const parts = [list("Came", all.filter((row) => !row.before_ns && row.after_ns), (row) => row.after_ns),
    list("Went", all.filter((row) => row.before_ns && !row.after_ns), (row) => row.before_ns)].filter(Boolean);
  return parts.length ? el("div", { class: "sides" }, ...parts) : null;
}

function addColours() {
  if (!DATA.changes) return;
  const chooser = el("select", { id: "colours", "aria-label": "Colours" }, el("option", { value: "" }, `colours: change since ${DATA.changes.before}`), el("option", { value: "types" }, "colours: layer types"));
  const update = () => { differs.shown = chooser.value === ""; drawIcicle(); writeLink(); };
  chooser.addEventListener("change", update);
  byId("root-place").append(chooser);
  linked("colours", () => chooser.value, (value) => { chooser.value = value; update(); });
  setChanges();
  update();
}
