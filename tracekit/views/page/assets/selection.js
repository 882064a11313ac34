// The selected module: one state, which all parts of the page listen to.

const selection = {
  mode: FOLDS ? "lines" : "modules",
  node: TREES[FOLDS ? "lines" : "modules"].all,
  phase: null, // the phase of training that is shown; null shows all
  shown: null, // the module under the pointer or focus, if it is another one
};
const listeners = { selected: [], shown: [] };

function onSelected(listener) {
  listeners.selected.push(listener);
}

function onShown(listener) {
  listeners.shown.push(listener);
}

function select(node, again = false) {
  const target = node.kind === "rest" || node.kind === "cause" ? node.parent : node;
  if (target === selection.node && !again) return;
  selection.node = target;
  selection.shown = null;
  for (const listener of listeners.selected) listener();
  announce(`${selection.phase ? `${selection.phase}, ` : ""}${target.path}: ${duration(target.subtree_ns)}, ${percent(target.share)}`);
}

function show(node) {
  if (selection.shown === node) return;
  selection.shown = node;
  for (const listener of listeners.shown) listener();
}

function setMode(mode) {
  if (mode === selection.mode) return;
  selection.mode = mode;
  selection.node = counterpart(selection.node, mode);
  selection.shown = null;
  for (const listener of listeners.selected) listener();
}

// The node of a path in the tree that is shown.
function selectPath(path) {
  const { tree } = selection.node;
  select((path && [...tree.nodes, ...tree.all.children].find((node) => node.path === path)) || tree.all);
}

// Whether work of an owner (its index in either tree) is in the selected subtree.
function isSelected(module, line) {
  return selection.node.holds(selection.mode === "lines" ? line : module);
}
