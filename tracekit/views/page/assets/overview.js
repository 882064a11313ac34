// The top of the page: what was recorded, totals, and how much of the time is attributed.

function tile(name, value, text, share) {
  return el("div", { class: "tile" }, el("p", { class: "label" }, name), el("p", { class: "value" }, value),
    share === undefined ? null : bar(share), el("p", { class: "muted" }, text));
}

function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

function timeTile() {
  const { rows } = DATA.about;
  const text = `${counted(rows.kernels, WORDS.work)}, ${counted(rows.calls, "call")} of ${counted(rows.modules, "module")}`;
  return tile(`${WORDS.device} time`, duration(TOTAL), text);
}

function knownTile() {
  const { time_ns: time, count, whole_ns: whole, in_steps: inSteps } = DATA.coverage.unknown;
  const all = DATA.coverage.doubts.length ? "all recorded work is attributed; the profiler may have lost some" : "all work is attributed";
  const text = count ? `${duration(time)} in ${counted(count, WORDS.work)} not attributed` : whole ? all : "no work was recorded";
  const share = whole ? 1 - time / whole : 0;
  return tile("Attributed", whole ? percent(share) : "\u2013", inSteps ? `in steps: ${text}` : text, share);
}

function stepsTile() {
  const { steps, on_each: onEach } = DATA.about;
  if (!steps.length) return tile("Steps", "none", "mark steps to see their cost");
  const [{ kind, median_host_ns: time }] = steps;
  const [processes, same] = onEach[0];
  const number = (step) => onEach[steps.indexOf(step)][1] ?? step.count;
  const kinds = steps.slice(0, 3).map((step) => `${grouped(number(step))} ${step.kind === "step" ? "" : step.kind}`.trim());
  const noun = DATA.processes.rows.every((row) => row.rank !== null) ? ["rank", "ranks"] : ["process", "processes"];
  const each = processes > 1 ? ` on ${same ? "each of " : ""}${counted(processes, ...noun)}` : "";
  const median = `median step on the host ${duration(time)}`;
  const single = `${kind === "step" ? "" : `${kind} steps, `}${median}`;
  return tile(`Steps${each}`, grouped(steps.reduce((sum, step) => sum + number(step), 0)), steps.length > 1 ? `${kinds.join(", ")}; ${kind}: ${median}` : single);
}

function idleTile() {
  const { devices } = DATA.idle;
  if (!devices.length) return null;
  const most = devices.reduce((worst, device) => (device.share > worst.share ? device : worst));
  const which = devices.length > 1 ? `highest of ${counted(devices.length, "device")}: ` : "";
  const text = `${which}${duration(most.idle_ns)} in ${counted(most.gaps, "gap")}, longest ${duration(most.longest_ns)}`;
  if (WORDS.device === "CPU") return tile("Between operators", percent(most.share), text, most.share);
  const { idle_ns: idle, whole_ns: whole, of } = DATA.budget;
  // Also before the first work and after the last, as the wall clock below has it.
  const known = `${duration(idle)} of ${of === "step" ? "a step" : `the ${of}`}; between work${which ? ", " : " "}${text}`;
  return tile("Device idle", percent(whole ? idle / whole : most.share), whole ? known : text, whole ? idle / whole : most.share);
}

function launchTile() {
  const sums = DATA.launched;
  if (!sums.launches) return null;
  const share = shareOf(sums.launch_bound_ns, sums.gpu_time_ns);
  const blocked = sums.blocked_ns ? ` and blocked it for ${duration(sums.blocked_ns)}` : "";
  const text = `${counted(sums.launches, "launch", "launches")} took the host ${duration(sums.launch_ns)}${blocked}`;
  return tile("Launch-bound", percent(share), text, share);
}

function addOverview() {
  const { about } = DATA;
  byId("title").textContent = about.title;
  const sources = about.sources.length > 3 ? [counted(about.reports, "report")] : about.sources;
  const numbered = ([name, times]) => (times > 1 ? `${times} \u00d7 ${name}` : name);
  const parts = [sources.join(", "), about.exporters.map(numbered).join(", "), about.devices.map(numbered).join(", "),
    counted(about.processes, "process", "processes")].filter(Boolean);
  byId("subtitle").append(...parts.flatMap((text, at) => (at ? [el("span", { class: "dot", "aria-hidden": "true" }, "\u00b7"), text] : [text])));
  byId("tiles").append(...[timeTile(), knownTile(), stepsTile(), idleTile(), launchTile()].filter(Boolean));
  addCoverage();
}

// More than this share of the time without a module is told in full.
const LOW_SHARE = 0.05;

function addCoverage() {
  const rows = DATA.coverage.kernels;
  if (TOTAL && !rows.length) return;
  const tones = rows.map((row, at) => (row.known ? `known-${at % 3}` : `unknown-${at % 3}`));
  const shares = rows.filter((row) => row.time_ns).map((row) =>
    styled(el("span", { class: tones[rows.indexOf(row)] }), { "flex-grow": row.time_ns }));
  const list = rows.map((row, at) => el("li", {}, swatch(tones[at]),
    el("span", { class: "what" }, row.how),
    el("span", { class: "figures" }, `${percent(shareOf(row.time_ns, TOTAL))} \u00b7 ${duration(row.time_ns)} \u00b7 ${counted(row.count, WORDS.work)}`)));
  const doubts = DATA.coverage.doubts.map((doubt) => el("li", {}, el("span", { class: "what" }, capital(doubt))));
  const stack = el("div", { class: "stack", role: "img", "aria-label": rows.map((row) => `${row.how} ${percent(shareOf(row.time_ns, TOTAL))}`).join(", ") }, ...shares);
  const { certainty } = DATA.coverage;
  const sure = certainty ? [el("p", { class: "muted", id: "certainty" }, certainty)] : [];
  const parts = rows.length ? [stack, el("ul", { class: "legend" }, ...list, ...doubts), ...sure] : [el("p", {}, `No ${WORDS.device} work was recorded.`)];
  const { advice } = DATA.coverage;
  const isLow = !rows.length || rows.some((row) => !row.known && shareOf(row.time_ns, TOTAL) > LOW_SHARE);
  if (advice.length) {
    parts.push(el("details", { class: "advice", open: isLow }, el("summary", {}, inWords(`Why some time has no module, and what to do (${advice.length})`)),
      el("ul", {}, ...advice.map((line) => el("li", {}, line)))));
  }
  if (isLow) section("coverage", ...parts);
  else foldCoverage(parts);
}

// One line, which opens.
function foldCoverage(parts) {
  const known = DATA.coverage.kernels.reduce((sum, row) => sum + (row.known ? row.time_ns : 0), 0);
  byId("coverage").querySelector("h2").remove();
  section("coverage", el("details", {}, el("summary", {}, inWords(`Coverage: ${percent(shareOf(known, TOTAL))} of the ${WORDS.device} time has a module`)), ...parts));
}
