// The top of the page: what was run, what it came to, and how much of it is accounted for.

function tile(name, value, said, share) {
  return el("div", { class: "tile" }, el("p", { class: "label" }, name), el("p", { class: "value" }, value),
    share === undefined ? null : bar(share), el("p", { class: "muted" }, said));
}

function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

function timeTile() {
  const { rows } = DATA.about;
  const said = `${counted(rows.kernels, WORDS.work)}, ${counted(rows.calls, "call")} of ${counted(rows.modules, "module")}`;
  return tile(`${WORDS.device} time`, duration(TOTAL), said);
}

function knownTile() {
  const unknown = DATA.coverage.kernels.filter((row) => !row.known);
  const time = unknown.reduce((sum, row) => sum + row.time_ns, 0);
  const count = unknown.reduce((sum, row) => sum + row.count, 0);
  const whole = DATA.coverage.doubts.length ? "all that was recorded has its module; the profiler may have lost some" : "everything has its module";
  const said = count ? `${duration(time)} in ${counted(count, WORDS.work)} have no module` : whole;
  const share = TOTAL ? 1 - time / TOTAL : 0;
  return tile("Accounted for", TOTAL ? percent(share) : "\u2013", said, share);
}

function stepsTile() {
  const { steps } = DATA.about;
  if (!steps.length) return tile("Steps", "none", "mark steps to see what one costs");
  const count = steps.reduce((sum, step) => sum + step.count, 0);
  const kinds = steps.slice(0, 3).map((step) => `${grouped(step.count)} ${step.kind === "step" ? "" : step.kind}`.trim());
  const longest = `median ${duration(steps[0].median_host_ns)} on the host`;
  return tile("Steps", grouped(count), steps.length > 1 || steps[0].kind !== "step" ? `${kinds.join(", ")}; ${steps[0].kind} ${longest}` : longest);
}

function idleTile() {
  const { devices } = DATA.idle;
  if (!devices.length) return null;
  const worst = devices.reduce((one, other) => (other.share > one.share ? other : one));
  const which = devices.length > 1 ? `most of ${counted(devices.length, "device")}; ` : "";
  const said = `${which}${duration(worst.idle_ns)} in ${counted(worst.gaps, "gap")}, longest ${duration(worst.longest_ns)}`;
  return tile(WORDS.device === "CPU" ? "Between operators" : "Device idle", percent(worst.share), said, worst.share);
}

function launchTile() {
  const sums = DATA.launched;
  if (!sums.launches) return null;
  const share = shareOf(sums.launch_bound_ns, sums.gpu_time_ns);
  const blocked = sums.blocked_ns ? ` and blocked it for ${duration(sums.blocked_ns)}` : "";
  const said = `${counted(sums.launches, "launch", "launches")} took the host ${duration(sums.launch_ns)}${blocked}; of all work that was launched, with a module or without`;
  return tile("Launch-bound", percent(share), said, share);
}

function addOverview() {
  const { about } = DATA;
  byId("title").textContent = about.title;
  const sources = about.sources.length > 3 ? [counted(about.reports, "report")] : about.sources;
  const often = ([name, times]) => (times > 1 ? `${times} \u00d7 ${name}` : name);
  const said = [sources.join(", "), about.exporters.map(often).join(", "), about.devices.map(often).join(", "),
    counted(about.processes, "process", "processes")].filter(Boolean);
  byId("subtitle").append(...said.flatMap((text, at) => (at ? [el("span", { class: "dot", "aria-hidden": "true" }, "\u00b7"), text] : [text])));
  byId("tiles").append(...[timeTile(), knownTile(), stepsTile(), idleTile(), launchTile()].filter(Boolean));
  addCoverage();
}

const METHODS = new Map([
  ["range", "by the call around it"],
  ["graph_node", "replayed from CUDA graphs, by their nodes"],
  ["graph_order", "replayed from CUDA graphs, by the order of their launches"],
]);

function causeText(row) {
  return row.known ? METHODS.get(row.cause) ?? `by ${row.cause}` : row.cause.replaceAll("_", " ");
}

function addCoverage() {
  const rows = DATA.coverage.kernels;
  const tones = rows.map((row, at) => (row.known ? `known-${at % 3}` : `unknown-${at % 3}`));
  const parts = rows.filter((row) => row.time_ns).map((row) =>
    styled(el("span", { class: tones[rows.indexOf(row)] }), { "flex-grow": row.time_ns, "min-width": "2px" }));
  const list = rows.map((row, at) => el("li", {}, swatch(tones[at]),
    el("span", { class: "what" }, row.known ? "attributed " : "unknown: ", causeText(row)),
    el("span", { class: "figures" }, `${percent(shareOf(row.time_ns, TOTAL))} \u00b7 ${duration(row.time_ns)} \u00b7 ${counted(row.count, WORDS.work)}`)));
  const doubts = DATA.coverage.doubts.map((doubt) => el("li", {}, el("span", { class: "what" }, capital(doubt))));
  const stack = el("div", { class: "stack", role: "img", "aria-label": rows.map((row) => `${causeText(row)} ${percent(shareOf(row.time_ns, TOTAL))}`).join(", ") }, ...parts);
  section("coverage", ...(rows.length ? [stack, el("ul", { class: "legend" }, ...list, ...doubts)]
    : [el("p", {}, `There is no ${WORDS.device} work in this dataset.`)]));
  const { advice } = DATA.coverage;
  if (!advice.length) return;
  const open = rows.some((row) => !row.known && shareOf(row.time_ns, TOTAL) > 0.05) || !rows.length;
  byId("coverage").append(el("details", { class: "advice", open }, el("summary", {}, `To know more next time (${advice.length})`),
    el("ul", {}, ...advice.map((line) => el("li", {}, line)))));
}
