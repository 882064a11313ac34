// Which module is looked at: one place, told to all parts of the page.

const selection = {
  mode: FOLDS ? "lines" : "modules",
  node: TREES[FOLDS ? "lines" : "modules"].all,
  shown: null, // what the pointer or the focus is on, if that is another one
};
const listeners = { selected: [], shown: [] };

function onSelected(listener) {
  listeners.selected.push(listener);
}

function onShown(listener) {
  listeners.shown.push(listener);
}

function select(node) {
  const target = node.kind === "rest" || node.kind === "cause" ? node.parent : node;
  if (target === selection.node) return;
  selection.node = target;
  selection.shown = null;
  for (const listener of listeners.selected) listener();
  announce(`${target.path}: ${duration(target.inclusive_ns)}, ${percent(target.share)}`);
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

// Whether work of these owners, an index in each tree, belongs to what is selected.
function isSelected(module, line) {
  return selection.node.holds(selection.mode === "lines" ? line : module);
}
