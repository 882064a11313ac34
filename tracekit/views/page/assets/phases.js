// Phases of training: how much of each time is forward, backward and so on, and which phase the page shows.

const PHASES = DATA.phases.names;

// The times of a node by phase, of its own and with all below. Those of a sum are the sums of its parts.
function phaseTimes(node) {
  const below = node.children.map(phaseTimes);
  const cause = node.kind === "cause" ? DATA.phases.causes.find((row) => row.cause === node.name) : null;
  node.times = PHASES.map((phase, at) => {
    const parts = below.reduce((sum, times) => sum + times[at].subtree_ns, 0);
    if (node.kind === "module") return { self_ns: node[`self_${phase}_ns`], subtree_ns: node[`${phase}_ns`] };
    if (node.kind === "cause") return { self_ns: cause?.[`${phase}_ns`] ?? 0, subtree_ns: cause?.[`${phase}_ns`] ?? 0 };
    return { self_ns: 0, subtree_ns: node.kind === "all" ? DATA.phases.total_ns[at] : parts };
  });
  node.whole = { self_ns: node.self_ns, subtree_ns: node.subtree_ns };
  const rest = node.children.find((child) => child.kind === "rest");
  rest?.times.forEach((time, at) => { time.subtree_ns = node.times[at].subtree_ns - node.times[at].self_ns - below.reduce((sum, times) => sum + times[at].subtree_ns, 0); });
  return node.times;
}

function showPhaseOf(node, at) {
  Object.assign(node, node.times[at] ?? node.whole);
  for (const child of node.children) showPhaseOf(child, at);
}

// Shows one phase, or with null all of them.
function setPhase(phase) {
  selection.phase = phase;
  for (const choice of document.getElementsByName("phase")) choice.checked = choice.value === (phase ?? "all");
  for (const { all } of Object.values(TREES)) {
    showPhaseOf(all, PHASES.indexOf(phase));
    all.name = `All ${phase ?? WORDS.device} time`;
  }
  select(selection.node, true);
}

// The parts of a node's own time, or of its subtree, in the phases that are shown: phase and share of the whole.
function phaseParts(node, time, whole) {
  return PHASES.flatMap((phase, at) => {
    const ns = node.times[at][time];
    return ns && (!selection.phase || selection.phase === phase) ? [{ phase, ns, share: shareOf(ns, whole) }] : [];
  });
}

// Colours side by side, each as wide as its part of the whole.
function phaseStripes(parts) {
  let at = 0;
  const stops = parts.map(({ phase, share }) => `var(--phase-${phase}) ${at * 100}% ${(at += share) * 100}%`);
  return `linear-gradient(90deg, ${[...stops, `transparent ${at * 100}%`].join(", ")})`;
}

// A bar as long as the share, in the colours of its phases if there are any.
function phaseBar(node, time, whole, tone) {
  if (!PHASES.length) return bar(shareOf(node[time], whole), tone);
  return styled(el("span", { class: "bar", "aria-hidden": "true" }), { "background-image": phaseStripes(phaseParts(node, time, whole)) });
}

// The parts of a node's time in words.
function phaseText(node) {
  const parts = selection.phase ? [] : phaseParts(node, "subtree_ns", node.subtree_ns);
  return parts.map(({ phase, share }) => `${phase} ${percent(share)}`).join(", ");
}

function addPhases() {
  if (!PHASES.length) return;
  const choices = [null, ...PHASES].map((phase) => {
    const choice = el("input", { type: "radio", name: "phase", value: phase ?? "all", checked: phase === null });
    choice.addEventListener("change", () => setPhase(phase));
    return el("label", {}, choice, phase ? swatch(`phase-${phase}`) : null, phase ?? "all phases");
  });
  linked("phase", () => selection.phase ?? "", (phase) => setPhase(PHASES.includes(phase) ? phase : null));
  byId("phase-hint").textContent = " Stripes: phases.";
  byId("phase-place").append(el("fieldset", { class: "phases" }, el("legend", { class: "unseen" }, "Phase"), ...choices));
}

if (PHASES.length) for (const tree of Object.values(TREES)) phaseTimes(tree.all);
