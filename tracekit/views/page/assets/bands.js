// Bands above the kernels of a stream: the modules that they ran for, each from its first kernel in a row to its last.

const MOST_BANDS = 4;

// The levels of the hierarchy at which the pieces of a stream differ, each as runs of one module.
function bandsOf(pieces, rows) {
  const order = [...rows].sort((left, right) => pieces.start_ns[left] - pieces.start_ns[right]);
  const paths = order.map((row) => lineage(pieces.module[row]));
  const deepest = Math.max(0, ...paths.map((path) => path.length));
  const levels = [];
  for (let level = 0; level < deepest && levels.length < MOST_BANDS; level += 1) {
    const runs = runsOf(pieces, order, paths.map((path) => path[level] ?? null));
    if (new Set(runs.map((run) => run.node)).size > 1) levels.push(runs);
  }
  return levels;
}

const lineages = new Map();

function lineage(module) {
  if (module < 0) return [];
  if (!lineages.has(module)) {
    const node = TREES.modules.nodes[module];
    lineages.set(module, [...node.ancestors.slice(1), node]);
  }
  return lineages.get(module);
}

function runsOf(pieces, order, nodes) {
  const runs = [];
  let last = null;
  order.forEach((row, at) => {
    const end = pieces.start_ns[row] + pieces.length_ns[row];
    if (last && last.node === nodes[at]) last.end = Math.max(last.end, end);
    else if (nodes[at]) runs.push((last = { node: nodes[at], start: pieces.start_ns[row], end }));
    else last = null;
  });
  return runs;
}
