// Ranks side by side: what each does in a step, and in which steps one works longer than the others.

const FEW_SLOW = 3;
const LEAST_APART = 0.1; // differences up to this are pale

function rankName(row) {
  if (row.rank !== null) return `rank ${row.rank}`;
  return [row.report, row.device === null ? null : `device ${row.device}`].filter((part) => part !== null).join(", ") || `process ${row.pid}`;
}

function medianOf(values) {
  const sorted = values.toSorted((left, right) => left - right);
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
}

function slowText(row) {
  const since = row.since_step ? ` since step ${row.since_step}` : "";
  const waited = row.others_waited_ns ? ` The others waited ${duration(Math.round(row.others_waited_ns))} for it in a step, added up.` : "";
  return `${rankName(row)} holds the others up: its own time is ${percent(row.slower_share)} longer than that of the median rank${since}, most of all in ${row.path ?? inWords("no module")}.${waited}`;
}

// For each step what a rank takes on its own, beside the median of the ranks in that step.
function heatMap(rows, own) {
  const count = Math.max(...own.map((values) => values.length));
  const usual = Array.from({ length: count }, (_, at) => medianOf(own.flatMap((values) => values[at] ?? [])));
  const apart = own.map((values) => values.map((value, at) => (usual[at] ? value / usual[at] - 1 : 0)));
  const full = apart.flat().reduce((largest, value) => Math.max(largest, Math.abs(value)), LEAST_APART);
  const cell = (line, at) => svg("rect", { x: at, y: 0, width: 1, height: 1, class: apart[line][at] > 0 ? "longer" : "shorter", "fill-opacity": (Math.abs(apart[line][at]) / full).toFixed(3) },
    svg("title", {}, `${rankName(rows[line])}, step ${at + 1} of ${count}: ${duration(own[line][at])} own time, ${signed(apart[line][at], percent)} from the median rank`));
  const lines = rows.map((row, line) => [el("span", { class: row.slow ? "chosen" : null }, rankName(row)),
    svg("svg", { viewBox: `0 0 ${count} 1`, preserveAspectRatio: "none" }, ...own[line].map((_, at) => cell(line, at)))]);
  const label = `Own time of ${counted(rows.length, "rank")} in ${counted(count, "step")}, left to right.`;
  return el("figure", {}, el("figcaption", { class: "muted" }, "Own time by rank and step, beside the median rank of that step: ",
    el("span", { class: "key" }, swatch("longer"), "longer"), el("span", { class: "key" }, swatch("shorter"), "shorter")),
  el("div", { class: "heat", role: "img", "aria-label": label }, ...lines.flat()));
}

function addRanks() {
  const { rows, own, left_out: left } = DATA.ranks;
  if (!rows.length) return;
  const time = (name) => (row) => (row[name] === null ? "" : duration(Math.round(row[name])));
  const some = (name) => (rows.some((row) => row[name] !== null) ? [name] : []);
  const titles = { own_ns: "own time", work_ns: "compute and copies", idle_ns: "idle", collectives_ns: "in collectives", others_waited_ns: "others waited" };
  const times = ["own_ns", "work_ns", "idle_ns", "collectives_ns", ...some("others_waited_ns")];
  const columns = [
    ["rank", (row) => el("span", {}, `${rankName(row)} `, row.slow ? el("span", { class: "status worse" }, "slow") : null)],
    ...[...some("host"), ...some("gpu")].map((name) => [name, (row) => row[name] ?? ""]),
    ["steps", (row) => integer(row.steps), true], ["step time", time("step_ns"), true], ["longer by", (row) => percent(row.slower_share), true],
    ...times.map((name) => [titles[name], time(name), true]),
    ["most of all in", (row) => el("span", { class: "path" }, ...breakable(row.path ?? inWords("no module")))],
  ];
  const slow = rows.filter((row) => row.slow).slice(0, FEW_SLOW).map((row) => el("p", {}, slowText(row)));
  const verdict = slow.length ? slow : [el("p", {}, "No rank works notably longer than the others before it communicates.")];
  const more = left ? el("p", { class: "muted" }, `${counted(left, "more rank")}: see tracekit show ranks`) : null;
  section("ranks", ...verdict, plainTable("Ranks: mean of their steps", columns, rows), more, heatMap(rows, own));
}
