// Ranks side by side: what each does in a step, and in which steps one works longer than the others.

const NOTABLY = 1.05;
const LEAST_APART = 0.1; // differences up to this are pale

function rankName(row) {
  if (row.rank !== null) return `rank ${row.rank}`;
  return [row.report, row.device === null ? null : `device ${row.device}`].filter((part) => part !== null).join(", ") || `process ${row.pid}`;
}

function medianOf(values) {
  const sorted = values.toSorted((left, right) => left - right);
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
}

// The rank for which the others waited longest, if that is proven, else the one that works longest by far.
function culpritOf(rows) {
  const proven = rows.some((row) => row.others_waited_ns);
  const of = (row) => (proven ? row.others_waited_ns : row.own_ns);
  const most = rows.reduce((worst, row) => (of(row) > of(worst) ? row : worst));
  const usual = medianOf(rows.map(of));
  if (!proven && most.own_ns < NOTABLY * usual) return { most: null, text: "No rank works notably longer than the others before it communicates." };
  const waited = `The others waited ${duration(Math.round(most.others_waited_ns))} a step for ${rankName(most)}.`;
  const worked = `In a step ${rankName(most)} works ${duration(Math.round(most.own_ns))} before or beside communication, the median of the ranks is ${duration(Math.round(usual))}.`;
  return { most, text: proven ? waited : worked };
}

// For each step what a rank takes on its own, beside the median of the ranks in that step.
function heatMap(rows, own, most) {
  const count = Math.max(...own.map((values) => values.length));
  const usual = Array.from({ length: count }, (_, at) => medianOf(own.flatMap((values) => values[at] ?? [])));
  const apart = own.map((values) => values.map((value, at) => (usual[at] ? value / usual[at] - 1 : 0)));
  const full = apart.flat().reduce((largest, value) => Math.max(largest, Math.abs(value)), LEAST_APART);
  const cell = (line, at) => svg("rect", { x: at, y: 0, width: 1, height: 1, class: apart[line][at] > 0 ? "longer" : "shorter", "fill-opacity": (Math.abs(apart[line][at]) / full).toFixed(3) },
    svg("title", {}, `${rankName(rows[line])}, step ${at + 1} of ${count}: ${duration(own[line][at])} own time, ${signed(apart[line][at], percent)} from the median rank`));
  const lines = rows.map((row, line) => [el("span", { class: row === most ? "chosen" : null }, rankName(row)),
    svg("svg", { viewBox: `0 0 ${count} 1`, preserveAspectRatio: "none" }, ...own[line].map((_, at) => cell(line, at)))]);
  const label = `Own time of ${counted(rows.length, "rank")} in ${counted(count, "step")}, left to right. ${culpritOf(rows).text}`;
  return el("figure", {}, el("figcaption", { class: "muted" }, "Own time by rank and step, beside the median rank of that step: ",
    el("span", { class: "key" }, swatch("longer"), "longer"), el("span", { class: "key" }, swatch("shorter"), "shorter")),
  el("div", { class: "heat", role: "img", "aria-label": label }, ...lines.flat()));
}

function addRanks() {
  const { rows, own, left_out: left } = DATA.ranks;
  if (!rows.length) return;
  const { most, text } = culpritOf(rows);
  const time = (name) => (row) => (row[name] === null ? "" : duration(Math.round(row[name])));
  const has = (name) => rows.some((row) => row[name]);
  const columns = [
    ["rank", (row) => el("span", {}, `${rankName(row)} `, row === most ? el("span", { class: "status worse" }, "slowest") : null)],
    ["steps", (row) => integer(row.steps), true], ["step time", time("step_ns"), true], ["own time", time("own_ns"), true], ["compute", time("compute_ns"), true],
    ...(has("copy_ns") ? [["copies", time("copy_ns"), true]] : []),
    ["exposed communication", time("communication_ns"), true],
    ...(has("communication_wait_ns") ? [["waited", time("communication_wait_ns"), true]] : []),
    ...(has("others_waited_ns") ? [["made others wait", time("others_waited_ns"), true]] : []),
    ["idle", time("idle_ns"), true],
  ];
  const unproven = has("others_waited_ns") ? null : el("p", { class: "muted" }, "Who waited for whom is not proven: see tracekit show clocks.");
  const more = left ? el("p", { class: "muted" }, `${counted(left, "more rank")}: see tracekit show budget`) : null;
  section("ranks", el("p", {}, text), plainTable("Ranks: mean of their steps", columns, rows), more, unproven, heatMap(rows, own, most));
}
