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
    if (new Set(runs.map((run) => run.node)).size > 1) levels.push(shadedRuns(runs, levels.at(-1) ?? []));
  }
  return levels;
}

// Runs that end where the next one begins, with a shade that is neither that of the run above nor of the one before.
function shadedRuns(runs, above) {
  let over = 0;
  runs.forEach((run, at) => {
    while (over < above.length - 1 && above[over + 1].start <= run.start) over += 1;
    run.end = Math.min(run.end, runs[at + 1]?.start ?? run.end);
    run.tone = toneOf(run.node);
    run.shade = freeShade(run.tone, [above[over]?.shade, runs[at - 1]?.shade]);
  });
  return runs;
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

// Tone and shade of each piece of a stream: where the module changes, the shade does, also from the last of its tone.
function looksOf(pieces, rows) {
  const looks = new Map();
  const lastOf = new Map();
  let last = null;
  for (const at of [...rows].sort((left, right) => pieces.start_ns[left] - pieces.start_ns[right])) {
    const module = TREES.modules.nodes[pieces.module[at]];
    const tone = module ? ownTone(module) : nameTone(pieces.name[at]);
    const before = lastOf.get(tone);
    const again = before && before.module === module && (before === last || before.shade !== last.shade);
    last = again ? before : { module, tone, shade: freeShade(tone, [last?.shade, before?.shade]) };
    lastOf.set(tone, last);
    looks.set(at, last);
  }
  return looks;
}
