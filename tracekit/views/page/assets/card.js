// The card of one module: its figures, its kernels, the lines of Python that launched them, and the shapes of its inputs.

const CARD_ROWS = 6;

function cardPhases(node) {
  const parts = PHASES.length && !selection.phase ? phaseParts(node, "subtree_ns", node.subtree_ns) : [];
  return parts.length ? facts(parts.map(({ phase, ns, share }) => [[swatch(`phase-${phase}`), ` ${phase}`], `${duration(ns)} (${percent(share)})`])) : null;
}

function cardFacts(node) {
  if (selection.phase) return facts([["self", node.kind === "module" ? `${duration(node.self_ns)} (${percent(shareOf(node.self_ns, node.subtree_ns))})` : ""]]);
  const each = node.median_ns !== undefined && node.modules > 1
    ? `${duration(node.median_ns)} (${duration(node.min_ns)} to ${duration(node.max_ns)})` : "";
  const step = node.step_median_ns === null || node.step_median_ns === undefined ? "" : `${duration(node.step_median_ns)} (p95 ${duration(node.step_p95_ns)})`;
  const bound = node.launched_ns ? `${percent(shareOf(node.launch_bound_ns, node.launched_ns))} of launched work` : "";
  return facts([
    ["self", node.kind === "module" ? `${duration(node.self_ns)} (${percent(shareOf(node.self_ns, node.subtree_ns))})` : ""],
    ["busy", node.busy_ns ? duration(node.busy_ns) : ""],
    ["each, median", each],
    ["change per step", node.change_ns ? changeText(node) : ""],
    ["per step, median", step],
    ["calls", integer(node.calls)],
    [`own ${WORDS.works}`, node.kind === "module" ? integer(node.kernels) : ""],
    ["launches", node.launches ? `${integer(node.launches)}, ${duration(node.launch_ns)} host time` : ""],
    ["blocked in launches", node.blocked_ns ? `${duration(node.blocked_ns)} host time` : ""],
    ["launch-bound", bound],
    ["device waited", node.waiting_ns ? duration(node.waiting_ns) : ""],
  ]);
}

function cardKernels(node) {
  if (node.kind === "rest" || node.kind === "cause") return null;
  const { rows, rest } = kernelsOf(node);
  if (!rows.length) return null;
  const shown = rows.slice(0, CARD_ROWS).map((row) => el("li", {},
    el("span", { class: "path" }, kernelName(row.kernel)),
    el("span", { class: "figures" }, `${duration(row.gpu_time_ns)} \u00b7 ${grouped(row.kernels)} \u00d7`),
    bar(shareOf(row.gpu_time_ns, node.subtree_ns))));
  const others = rows.slice(CARD_ROWS).reduce((sum, row) => sum + row.gpu_time_ns, rest);
  const more = others > 0 ? el("li", { class: "muted" }, `others: ${duration(others)}`) : null;
  return el("div", {}, el("h4", {}, `Top ${WORDS.works}`), el("ul", { class: "inside" }, ...shown, more));
}

function cardLines(node) {
  if (node.kind === "rest" || node.kind === "cause" || node.kind === "kernel" || selection.phase) return null;
  const pairs = DATA.sources[`of_${node.tree.mode}`];
  const times = new Map();
  pairs.node.forEach((owner, at) => { if (node.holds(owner)) times.set(pairs.source[at], (times.get(pairs.source[at]) ?? 0) + pairs.gpu_ns[at]); });
  const rows = [...times].sort((left, right) => right[1] - left[1]).slice(0, CARD_ROWS);
  if (!rows.length) return null;
  return el("div", {}, el("h4", {}, "Launched from"), el("ul", { class: "inside" }, ...rows.map(([source, time]) => el("li", {},
    el("span", { class: "path" }, ...breakable(DATA.sources.texts[source])), el("span", { class: "figures" }, duration(time)), bar(shareOf(time, node.subtree_ns))))));
}

function cardShapes(node) {
  if (node.kind !== "module" || node.tree !== TREES.modules || selection.phase) return null;
  const { shapes } = DATA;
  const rows = shapes.module.flatMap((module, at) => (module === node.index ? [rowOf(shapes, at)] : []));
  if (!rows.length) return null;
  const more = rows[0].rows - rows.length;
  const others = more ? el("li", { class: "muted" }, `${grouped(more)} more: see tracekit show shapes`) : null;
  const phase = (row) => [shapes.texts[row.phase]].filter((name) => name && name !== "forward").map((name) => el("span", { class: "muted" }, ` ${name}`));
  return el("div", {}, el("h4", {}, "By input shapes"), el("ul", { class: "inside" }, ...rows.map((row) => el("li", {},
    el("span", { class: "path" }, shapes.texts[row.inputs], ...phase(row)),
    el("span", { class: "figures" }, [duration(row.gpu_time_ns), `${grouped(row.calls)} \u00d7`, row.gpu_ns_per_token ? `${duration(row.gpu_ns_per_token)} per token` : ""].filter(Boolean).join(" \u00b7 ")))), others));
}

// How long its calls took, or the runs of a kernel.
function cardDurations(node) {
  const list = node.kind === "kernel" ? "kernels" : node.kind === "module" ? node.tree.mode : null;
  const spread = list && !selection.phase ? DATA.kernels.durations[list].find((row) => row.of === (node.kernel ?? node.index)) : null;
  if (!spread) return null;
  const { counts, from_ns: from, until_ns: until } = spread;
  const most = Math.max(...counts);
  const edge = (at) => duration(Math.round(from * (until / from) ** (at / counts.length)));
  const what = node.kind === "kernel" ? "Durations" : `${WORDS.device} time of calls`;
  const bars = counts.map((count, at) => svg("rect", { x: at, width: 0.9, y: 1 - count / most, height: count / most },
    svg("title", {}, `${grouped(count)} from ${edge(at)} to ${edge(at + 1)}`)));
  const peak = counts.indexOf(most);
  const label = `${what}: ${grouped(counts.reduce((sum, count) => sum + count, 0))} from ${duration(from)} to ${duration(until)}, most from ${edge(peak)} to ${edge(peak + 1)}`;
  return el("div", {}, el("h4", {}, what), svg("svg", { viewBox: `0 0 ${counts.length} 1`, preserveAspectRatio: "none", class: "spread", role: "img", "aria-label": label }, ...bars),
    el("p", { class: "ends muted" }, el("span", {}, duration(from)), el("span", {}, duration(until))));
}

function kernelName(at) {
  return DATA.kernels.name[at] ?? DATA.kernels.kind[at];
}

function drawCard() {
  const node = selection.shown ?? selection.node;
  const type = className(node);
  byId("card").replaceChildren(...[
    el("h3", { class: "path" }, swatch(toneOf(node)), ...breakable(node.path), node.copies > 1 ? el("span", { class: "times" }, `${grouped(node.modules)} \u00d7`) : null),
    type ? el("p", { class: "muted" }, type) : null,
    el("p", { class: "value" }, percent(node.share), el("span", { class: "muted" }, ` ${duration(node.subtree_ns)}${selection.phase ? ` ${selection.phase}` : ""}`)),
    phaseBar(node, "subtree_ns", node.tree.all.subtree_ns, toneOf(node)),
    node.advice ? el("p", { class: "muted" }, capital(node.advice)) : null,
    cardPhases(node), cardFacts(node), cardDurations(node), cardKernels(node), cardLines(node), cardShapes(node),
  ].filter(Boolean));
}

function addCard() {
  onSelected(drawCard);
  onShown(drawCard);
  drawCard();
}
