// The data that Python embedded, and the hierarchy as two trees: of single modules, and of lines, in which equal layers
// are folded.

const DATA = JSON.parse(byId("data").textContent);
const WORDS = DATA.about.words;
const TOTAL = DATA.about.total_ns;
const TYPES = DATA.nodes.types;
const UNKNOWN = -1;
const NO_FIGURES = { calls: null, kernels: null, self_ns: 0, busy_ns: null, step_median_ns: null, modules: 1, copies: 1 };

class Node {
  constructor(tree, kind, index, name, figures) {
    Object.assign(this, { tree, kind, index, name, parent: null, children: [], ...figures });
  }

  // Of all time that is shown.
  get share() {
    return shareOf(this.subtree_ns, this.tree.all.subtree_ns);
  }

  get selfShare() {
    return shareOf(this.self_ns, this.tree.all.subtree_ns);
  }

  get path() {
    if (this.tree.root !== "modules") return [this, ...this.ancestors.slice(1).reverse()].reverse().map((node) => node.name).join(" \u2190 ");
    const names = [];
    for (let node = this; node.parent; node = node.parent) names.push(node.name.replaceAll(" \u2026 ", "\u2026"));
    return names.reverse().join(".") || this.name;
  }

  get ancestors() {
    const above = [];
    for (let node = this.parent; node; node = node.parent) above.unshift(node);
    return above;
  }

  get type() {
    return this.typeIndex >= 0 ? TYPES[this.typeIndex] : null;
  }

  // The range of indexes of its subtree: the tree's nodes are in pre-order.
  get reach() {
    return this.kind === "all" ? [-2, Infinity] : [this.index, this.end];
  }

  // Whether work of an owner (an index of a node, or -1 for no module) is in this subtree.
  holds(owner) {
    if (this.owners) return this.owners.has(owner);
    return owner >= this.reach[0] && owner < this.reach[1];
  }
}

function rowOf(columns, at) {
  const row = {};
  for (const [name, column] of Object.entries(columns)) {
    if (Array.isArray(column)) row[name] = column[at];
  }
  return row;
}

// All work: modules in pre-order, modules that are left out, and work without a module, by cause.
function treeOf(mode) {
  const columns = DATA.nodes[mode];
  const tree = { root: "modules", mode, nodes: [], all: null };
  const all = new Node(tree, "all", -2, `All ${WORDS.device} time`, { ...NO_FIGURES, subtree_ns: TOTAL });
  tree.all = all;
  columns.name.forEach((name, at) => {
    const { parent, type, name: _, ...figures } = rowOf(columns, at);
    const node = new Node(tree, "module", at, name, { ...NO_FIGURES, ...figures, typeIndex: type });
    node.parent = parent < 0 ? all : tree.nodes[parent];
    node.parent.children.push(node);
    tree.nodes.push(node);
  });
  for (const node of tree.nodes.toReversed()) node.end = node.children.at(-1)?.end ?? node.index + 1;
  addUnknown(all);
  for (const node of [all, ...tree.nodes]) addLeftOut(node);
  return tree;
}

function addUnknown(all) {
  const causes = DATA.coverage.kernels.filter((row) => !row.known);
  const time = causes.reduce((sum, row) => sum + row.time_ns, 0);
  const count = causes.reduce((sum, row) => sum + row.count, 0);
  if (!count) return;
  const figures = { ...NO_FIGURES, kernels: count, subtree_ns: time, end: 0, advice: "" };
  const unknown = new Node(all.tree, "unknown", UNKNOWN, inWords("no module"), figures);
  unknown.parent = all;
  all.children.push(unknown);
  for (const row of causes) {
    const own = { ...NO_FIGURES, kernels: row.count, subtree_ns: row.time_ns, self_ns: row.time_ns, end: 0, advice: row.advice };
    const cause = new Node(all.tree, "cause", UNKNOWN, row.cause, own);
    cause.parent = unknown;
    unknown.children.push(cause);
  }
}

function addLeftOut(node) {
  const below = node.children.reduce((sum, child) => sum + child.subtree_ns, 0);
  const time = node.kind === "all" ? TOTAL - below : node.left_out_ns;
  if (!node.left_out && !(node.kind === "all" && time > 0)) return;
  const name = node.left_out ? counted(node.left_out, "smaller module") : inWords("smaller modules");
  const rest = new Node(node.tree, "rest", null, name, { ...NO_FIGURES, subtree_ns: time, end: null });
  rest.parent = node;
  node.children.push(rest);
}

const TREES = { lines: treeOf("lines"), modules: treeOf("modules") };
const FOLDS = TREES.lines.nodes.length < TREES.modules.nodes.length;

// The same module in the other tree, or its nearest ancestor there.
function counterpart(node, mode) {
  const tree = TREES[mode];
  if (node.tree === tree) return node;
  if (node.tree.root !== "modules") return treeFrom(node.tree.root, mode).all;
  if (node.kind === "unknown" || node.kind === "cause") {
    return tree.all.children.find((child) => child.kind === "unknown") ?? tree.all;
  }
  if (node.kind !== "module") return node.parent ? counterpart(node.parent, mode) : tree.all;
  const lines = DATA.nodes.modules.line;
  const at = mode === "lines" ? lines[node.index] : lines.indexOf(node.index);
  return tree.nodes[at] ?? (node.parent ? counterpart(node.parent, mode) : tree.all);
}

// Kernels of a subtree in the phase that is shown, the most time first, and the time of kernels that are not listed.
function kernelsOf(node) {
  const pairs = DATA.kernels[`of_${node.tree.mode}`];
  const byKernel = new Map();
  let rest = node.subtree_ns;
  pairs.node.forEach((owner, at) => {
    if (!node.holds(owner) || (node.kernel ?? pairs.kernel[at]) !== pairs.kernel[at] || (selection.phase && PHASES[pairs.phase[at]] !== selection.phase)) return;
    const sums = byKernel.get(pairs.kernel[at]) ?? { kernel: pairs.kernel[at], kernels: 0, gpu_time_ns: 0 };
    sums.kernels += pairs.kernels[at];
    sums.gpu_time_ns += pairs.gpu_time_ns[at];
    rest -= pairs.gpu_time_ns[at];
    byKernel.set(sums.kernel, sums);
  });
  return { rows: [...byKernel.values()].sort((left, right) => right.gpu_time_ns - left.gpu_time_ns), rest };
}
