// Changes since another dataset: whole steps, then modules, each with its kernels that changed.

const FIRST_CHANGES = 12;
const STATUS = { slower: "worse", added: "worse", faster: "better", gone: "better", same: "same", unlike: "same" };

function changeText(row) {
  const share = row.before_ns ? ` (${signed(row.change_ns / row.before_ns, percent)})` : "";
  return `${signed(Math.round(row.change_ns), duration)}${share}`;
}

function timeText(ns) {
  return ns === null ? "\u2013" : duration(Math.round(ns));
}

function numberText(row) {
  const [before, after] = [row.before_kernels ?? 0, row.after_kernels ?? 0].map(grouped);
  return before === after ? before : `${before} \u2192 ${after}`;
}

// A bar from the middle: to the right if slower, to the left if faster.
function changeBar(row, most) {
  const share = Math.min(Math.abs(row.change_ns) / most, 1) * 50;
  const worse = row.change_ns > 0;
  const inside = styled(el("span", { class: worse ? "worse" : "better" }), { width: `${share}%`, left: `${worse ? 50 : 50 - share}%` });
  return el("span", { class: "balance", "aria-hidden": "true" }, inside);
}

function kernelChanges(row) {
  if (!row.kernels.length) return null;
  const rows = row.kernels.map((kernel) => el("li", {}, el("span", { class: "path" }, kernel.name),
    el("span", { class: "figures" }, `${timeText(kernel.before_ns)} \u2192 ${timeText(kernel.after_ns)} \u00b7 ${changeText(kernel)} \u00b7 ${numberText(kernel)} ${WORDS.works}`)));
  const more = row.kernels_left_out ? el("li", { class: "muted" }, `and ${grouped(row.kernels_left_out)} more`) : null;
  return el("details", {}, el("summary", {}, `${counted(row.kernels.length + row.kernels_left_out, WORDS.work)} changed`), el("ul", { class: "inside" }, ...rows, more));
}

function changeName(row) {
  const copies = row.copies > 1 ? el("span", { class: "times" }, `${grouped(row.copies)} \u00d7`) : null;
  const shapes = row.shapes ? el("span", { class: "muted" }, ` ${row.shapes}`) : null;
  return el("div", {}, el("span", { class: "path" }, ...breakable(row.path)), copies, shapes, kernelChanges(row));
}

function addChanges() {
  const { changes } = DATA;
  if (!changes) return;
  const rows = [...changes.steps, ...changes.lines];
  const most = Math.max(...rows.map((row) => Math.abs(row.change_ns)), 1);
  const table = (shown) => plainTable(`Changes from ${changes.before} to ${changes.after}, per step`, [
    [`${WORDS.device} time per step`, changeName],
    ["before", (row) => timeText(row.before_ns), true],
    ["after", (row) => timeText(row.after_ns), true],
    ["change", changeText, true],
    ["bar", (row) => changeBar(row, most), false, true],
    ["status", (row) => el("span", { class: `status ${STATUS[row.status]}` }, row.status), false, true],
    [WORDS.works, numberText, true],
  ], shown);
  const place = el("div", { class: "changed" }, table(rows.slice(0, FIRST_CHANGES)));
  const all = rows.length > FIRST_CHANGES ? el("button", { type: "button" }, `Show ${counted(rows.length - FIRST_CHANGES, "more change")}`) : null;
  all?.addEventListener("click", () => { place.replaceChildren(table(rows)); all.remove(); });
  const chips = Object.entries(changes.tally).map(([status, count]) => el("span", { class: `status ${STATUS[status]}` }, `${grouped(count)} ${status}`));
  const notes = changes.notes.map((note) => el("p", { class: "muted" }, note));
  const more = changes.left_out ? el("p", { class: "muted" }, `${counted(changes.left_out, "smaller change")} not shown: see tracekit diff`) : null;
  const none = changes.lines.length ? null : el("p", {}, inWords("No module changed by more than the spread between steps."));
  section("changes", el("p", { class: "chips" }, el("span", {}, `${changes.before} \u2192 ${changes.after}`), ...chips,
    el("span", { class: "muted" }, `${counted(changes.same, "module and shape", "modules and shapes")} unchanged`)), ...notes, none, place, all, more, layerTable(), cameAndWent());
}
