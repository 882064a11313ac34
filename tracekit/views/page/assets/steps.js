// What steps cost: a bar per step, and sums by kind and batch size.

const BARS_PX = 64;
const WIDEST_BAR = 16;

// The bar of a step: Python groups neighbours in the same way.
function barOf(row) {
  const { bars, count } = DATA.steps;
  return Math.floor((row * bars.step.length) / count);
}

function stepBars() {
  const { bars, count, kinds, slow } = DATA.steps;
  const most = Math.max(...bars.time_ns, 1);
  const wide = Math.min(600 / Math.max(bars.step.length, 1), WIDEST_BAR);
  const rects = bars.time_ns.map((ns, at) => {
    const high = (ns / most) * BARS_PX;
    const name = `step ${grouped(bars.step[at])}, ${kinds[bars.kind[at]] ?? "other"}: ${duration(ns)}, ${duration(bars.gpu_time_ns[at])} ${WORDS.device} time`;
    return svg("rect", { x: at * wide, y: BARS_PX - high, width: Math.max(wide * 0.86, 0.4), height: high, class: `kind-${Math.min(bars.kind[at], 3)}` }, svg("title", {}, name));
  });
  const below = (rows, looks) => [...new Set(rows.map(barOf))].map((at) =>
    svg("rect", { x: at * wide, y: BARS_PX + 2, width: Math.max(wide * 0.86, 2), height: 4, class: looks }));
  const drawn = DATA.timeline.drawn.filter((drawing) => drawing.step).map((drawing) => drawing.step.row);
  const marks = [...below(drawn, "mark"), ...below(slow.map((step) => step.row), "slow")];
  const label = `wall clock of ${counted(count, "step")} in order, longest ${duration(most)}`;
  const chart = svg("svg", { viewBox: `0 0 600 ${BARS_PX + 8}`, preserveAspectRatio: "none", class: "bars", role: "img", "aria-label": label }, ...rects, ...marks);
  const keys = kinds.slice(0, 3).map((kind, at) => el("span", { class: "key" }, swatch(`kind-${at}`), kind));
  const grouping = count > bars.step.length ? ` Each bar is the slowest of about ${grouped(Math.round(count / bars.step.length))} steps.` : "";
  const key = (looks, text) => el("span", { class: "key" }, swatch(looks), text);
  return el("figure", {}, el("figcaption", { class: "muted" }, `${capital(label)}.${grouping} `, ...keys, key("mark", "on the timeline"), slow.length ? key("slow", "slow") : null), chart);
}

// The slow steps by name; one that is on the timeline is shown there.
function slowSteps() {
  const { slow } = DATA.steps;
  if (!slow.length) return null;
  const rows = slow.map((step) => {
    const text = `${step.kind === "step" ? "step" : `${step.kind} step`} ${grouped(step.row)} (index ${grouped(step.index)})`;
    const at = DATA.timeline.drawn.findIndex((drawing) => drawing.step?.row === step.row);
    const name = at < 0 ? text : el("button", { type: "button", class: "link", onclick: () => showDrawing(at) }, text);
    return el("li", {}, name, el("span", { class: "figures" }, `${duration(step.time_ns)}, ${figure(step.time_ns / step.median_ns)} \u00d7 the median; ${duration(step.gpu_time_ns)} ${WORDS.device} time`));
  });
  return el("div", {}, el("h3", {}, "Slow steps"), el("ul", { class: "inside slowest" }, ...rows));
}

function showDrawing(at) {
  choose(at);
  writeLink();
  byId("timeline").scrollIntoView();
}

function phaseTable() {
  const { phases, phases_left_out: more } = DATA.steps;
  const any = (name) => phases.some((row) => row[name] !== null);
  const columns = [
    ["kind", (row) => row.kind ?? "step"],
    ["batch size", (row) => integer(row.batch_size), true],
    ["steps", (row) => integer(row.steps), true],
    [`${WORDS.device} median`, (row) => duration(row.gpu_median_ns), true],
    ["p95", (row) => duration(row.gpu_p95_ns), true],
    ["host median", (row) => duration(row.host_median_ns), true],
    [`${WORDS.device} time per token`, (row) => duration(row.gpu_ns_per_token), true],
    ["share", (row) => percent(row.share), true],
  ];
  const needed = { "batch size": "batch_size", [`${WORDS.device} time per token`]: "gpu_ns_per_token" };
  const shown = columns.filter(([title]) => !needed[title] || any(needed[title]));
  return [plainTable("Steps by kind and batch size", shown, phases), more ? el("p", { class: "muted" }, `${counted(more, "more row")}: see tracekit show phases`) : null];
}

function addSteps() {
  if (!DATA.steps.count) return;
  section("steps", stepBars(), slowSteps(), ...phaseTable());
}
