// The hierarchy from below: kernels or types of layers at the root, above each the modules that ran it, up to the model.

// A tree of one root ("kernels" or "classes"), of single modules or of lines (mode).
function bottomUp(root, mode) {
  const tree = { root, mode, nodes: [], all: null };
  const { all } = TREES[mode];
  tree.all = new Node(tree, "all", -2, all.name, { ...NO_FIGURES, subtree_ns: TOTAL, times: all.times, whole: all.whole });
  for (const work of root === "kernels" ? workByKernel(mode) : workByType(mode)) addWork(tree, work);
  addRest(tree.all);
  for (const node of [tree.all, ...tree.nodes]) {
    node.whole ??= { self_ns: 0, subtree_ns: node.subtree_ns };
    node.children.sort((left, right) => (left.kind === "rest") - (right.kind === "rest") || right.subtree_ns - left.subtree_ns);
  }
  if (PHASES.length) showPhaseOf(tree.all, PHASES.indexOf(selection.phase));
  return tree;
}

// Pieces of work: what is at the root, the module that ran it, its time, and that by phase.
function workByKernel(mode) {
  const pairs = DATA.kernels[`of_${mode}`];
  const unknown = TREES[mode].all.children.find((child) => child.kind === "unknown");
  return pairs.node.map((owner, at) => ({
    key: pairs.kernel[at], name: kernelName(pairs.kernel[at]), figures: { kernel: pairs.kernel[at] }, owner, ns: pairs.gpu_time_ns[at],
    times: PHASES.map((_, phase) => (pairs.phase[at] === phase ? pairs.gpu_time_ns[at] : 0)), above: TREES[mode].nodes[owner] ?? (owner === UNKNOWN ? unknown : null),
  }));
}

function workByType(mode) {
  return TREES[mode].nodes.filter((node) => node.type && (node.whole ?? node).self_ns).map((node) => ({
    key: node.typeIndex, name: typeName(node.type), figures: { typeIndex: node.typeIndex }, owner: node.index, ns: (node.whole ?? node).self_ns,
    times: node.times?.map((time) => time.self_ns) ?? [], above: node,
  }));
}

function addWork(tree, work) {
  let node = callerOf(tree.all, work.key, tree.root === "kernels" ? "kernel" : "class", work.name, work.figures);
  addTime(node, work);
  for (let { above } = work; above && above.kind !== "all"; above = above.parent) {
    node = callerOf(node, `${above.name}\n${above.typeIndex}`, "caller", above.name, { typeIndex: above.typeIndex, kernel: work.figures.kernel });
    addTime(node, work);
  }
}

function addTime(node, work) {
  node.subtree_ns += work.ns;
  node.owners.add(work.owner);
  work.times.forEach((ns, phase) => { node.times[phase].subtree_ns += ns; });
}

// The node above another one for a key, which is made if it is new.
function callerOf(below, key, kind, name, figures) {
  below.byKey ??= new Map();
  if (!below.byKey.has(key)) {
    const times = PHASES.map(() => ({ self_ns: 0, subtree_ns: 0 }));
    const node = new Node(below.tree, kind, NaN, name, { ...NO_FIGURES, subtree_ns: 0, ...figures, owners: new Set(), times, number: below.tree.nodes.length });
    node.parent = below;
    below.byKey.set(key, node);
    below.children.push(node);
    below.tree.nodes.push(node);
  }
  return below.byKey.get(key);
}

// All work that is at no root: kernels that are not listed, or modules that have no type.
function addRest(all) {
  const rest = (whole, of) => whole - all.children.reduce((sum, child) => sum + of(child), 0);
  const time = rest(TOTAL, (node) => node.subtree_ns);
  if (time <= 0) return;
  const times = PHASES.map((_, at) => ({ self_ns: 0, subtree_ns: rest(all.times[at].subtree_ns, (node) => node.times[at].subtree_ns) }));
  const node = new Node(all.tree, "rest", null, all.tree.root === "kernels" ? `other ${WORDS.works}` : `other ${WORDS.device} time`, { ...NO_FIGURES, subtree_ns: time, times });
  node.whole = { self_ns: 0, subtree_ns: time };
  node.parent = all;
  all.children.push(node);
}

// The tree with this root in the present mode.
function treeFrom(root, mode = selection.mode) {
  if (root === "modules") return TREES[mode];
  return (TREES[`${root} of ${mode}`] ??= bottomUp(root, mode));
}

function addRoots() {
  const roots = { modules: inWords("from the model down"), kernels: `from ${WORDS.works} up`, classes: "from layer types up" };
  if (!TYPES.some((type) => type.self_ns)) delete roots.classes;
  const chooser = el("select", { id: "root", "aria-label": "Hierarchy" }, ...Object.entries(roots).map(([value, text]) => el("option", { value }, text)));
  chooser.addEventListener("change", () => select(treeFrom(chooser.value).all));
  byId("root-place").append(chooser);
  onSelected(() => { chooser.value = selection.node.tree.root; });
  linked("from", () => (chooser.value === "modules" ? "" : chooser.value), (root) => select(treeFrom(root in roots ? root : "modules").all));
}

function addOrder() {
  const chooser = el("select", { id: "order", "aria-label": "Order of siblings" }, el("option", { value: "" }, "siblings in order"), el("option", { value: "time" }, "siblings by time"));
  chooser.addEventListener("change", () => { sortSiblings(); drawIcicle(); writeLink(); });
  byId("root-place").append(chooser);
  onSelected(sortSiblings);
  linked("order", () => chooser.value, (order) => { chooser.value = order; chooser.dispatchEvent(new Event("change")); });
}

function sortSiblings() {
  const byTime = byId("order").value === "time";
  const place = (node) => (node.kind === "module" ? (byTime ? -node.subtree_ns : node.index) : Infinity);
  const compare = (left, right) => { const [one, other] = [place(left), place(right)]; return one === other ? 0 : one - other; };
  for (const tree of [TREES.lines, TREES.modules]) for (const node of [tree.all, ...tree.nodes]) node.children.sort(compare);
}
