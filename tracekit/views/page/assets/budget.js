// Where the wall clock of a step went: one bar, and a line for each kind with the modules that lead it.

function kindTone({ place }) {
  return place < TONES ? `tone-${place}` : "tone-unknown";
}

function kindName(row) {
  return row.kind.replaceAll("_", " ");
}

function budgetBar(rows) {
  const parts = rows.filter((row) => row.step_ns).map((row) =>
    styled(el("span", { class: kindTone(row), title: `${kindName(row)} ${percent(row.share)}` }), { "flex-grow": row.step_ns }));
  const label = rows.map((row) => `${kindName(row)} ${percent(row.share)}`).join(", ");
  return el("div", { class: "stack", role: "img", "aria-label": label }, ...parts);
}

function budgetTable(rows, of) {
  const leading = (row) => row.leading.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
  const lines = rows.map((row) => el("tr", {}, el("th", { scope: "row" }, swatch(kindTone(row)), ` ${kindName(row)}`),
    el("td", {}, duration(row.step_ns)), el("td", {}, percent(row.share)), el("td", {}, percent(row.total_share)),
    el("td", { class: "path" }, leading(row))));
  const headings = ["kind", of, "share", "of all", "led by"].map((text) => el("th", { scope: "col" }, text));
  return el("table", { class: "budget" }, el("thead", {}, el("tr", {}, ...headings)), el("tbody", {}, ...lines));
}

// Both budgets below each other on one scale, with how each kind changed.
function addBothBudgets(before, after) {
  const longest = Math.max(before.whole_ns, after.whole_ns, 1);
  const bars = [[DATA.changes.before, before], [DATA.changes.after, after]].map(([name, budget], at) => el("div", { class: "scaled" },
    el("p", { class: "muted" }, `${name}, ${budget.length}: ${duration(budget.whole_ns)}${at && before.whole_ns ? ` (${signed(budget.whole_ns / before.whole_ns - 1, percent)})` : ""}`), styled(budgetBar(budget.rows), { width: `${(budget.whole_ns / longest) * 100}%` })));
  const rows = new Map();
  for (const [side, budget] of [["before_ns", before], ["after_ns", after]]) {
    for (const row of budget.rows) rows.set(row.kind, { ...row, before_ns: 0, after_ns: 0, ...rows.get(row.kind), [side]: row.step_ns });
  }
  const ordered = [...rows.values()].sort((left, right) => left.place - right.place).map((row) => ({ ...row, change_ns: row.after_ns - row.before_ns }));
  section("budget", ...bars, plainTable("The budgets before and after, by kind", [
    ["kind", (row) => el("span", {}, swatch(kindTone(row)), ` ${kindName(row)}`)], ["before", (row) => timeText(row.before_ns), true],
    ["after", (row) => timeText(row.after_ns), true], ["change", (row) => (row.change_ns ? changeText(row) : "\u2013"), true]], ordered));
}

function addBudget() {
  const { rows, whole_ns: whole, of, length } = DATA.budget;
  if (!rows.length) return;
  if (DATA.changes?.budget.rows.length) {
    addBothBudgets(DATA.changes.budget, DATA.budget);
    return;
  }
  section("budget", el("p", { class: "muted" }, `${length}: ${duration(whole)}.`), budgetBar(rows), budgetTable(rows, of));
}
