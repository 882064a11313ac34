// What steps cost: a bar per step, and sums by kind and batch size.

const BARS_PX = 64;
const WIDEST_BAR = 16;

// The bar of a step: Python groups neighbours in the same way.
function barOf(row) {
  const { bars, count } = DATA.steps;
  return Math.floor((row * bars.step.length) / count);
}

function stepBars() {
  const { bars, count, kinds } = DATA.steps;
  const most = Math.max(...bars.gpu_time_ns, 1);
  const wide = Math.min(600 / Math.max(bars.step.length, 1), WIDEST_BAR);
  const drawn = new Set(DATA.timeline.drawn.filter((drawing) => drawing.step).map((drawing) => barOf(drawing.step.row)));
  const rects = bars.gpu_time_ns.map((ns, at) => {
    const high = (ns / most) * BARS_PX;
    const name = `step ${grouped(bars.step[at])}, ${kinds[bars.kind[at]] ?? "other"}: ${duration(ns)}`;
    return svg("rect", { x: at * wide, y: BARS_PX - high, width: Math.max(wide * 0.86, 0.4), height: high, class: `kind-${Math.min(bars.kind[at], 3)}` }, svg("title", {}, name));
  });
  const marks = [...drawn].map((at) => svg("rect", { x: at * wide, y: BARS_PX + 2, width: Math.max(wide * 0.86, 2), height: 4, class: "mark" }));
  const label = `${WORDS.device} time of ${counted(count, "step")} in order, longest ${duration(most)}`;
  const chart = svg("svg", { viewBox: `0 0 600 ${BARS_PX + 8}`, preserveAspectRatio: "none", class: "bars", role: "img", "aria-label": label }, ...rects, ...marks);
  const keys = kinds.slice(0, 3).map((kind, at) => el("span", { class: "key" }, swatch(`kind-${at}`), kind));
  const grouping = count > bars.step.length ? ` Each bar is the slowest of about ${grouped(Math.round(count / bars.step.length))} steps.` : "";
  return el("figure", {}, el("figcaption", { class: "muted" }, `${capital(label)}.${grouping} `, ...keys, el("span", { class: "key" }, swatch("mark"), "on the timeline")), chart);
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
  section("steps", stepBars(), ...phaseTable());
}
