// Where the wall clock of the median step went: one bar, and a line for each kind with the modules that lead it.

function kindTone({ place }) {
  return place < TONES ? `tone-${place}` : "tone-unknown";
}

function kindName(row) {
  return row.kind.replaceAll("_", " ");
}

function budgetBar(rows) {
  const parts = rows.filter((row) => row.median_ns).map((row) =>
    styled(el("span", { class: kindTone(row), title: `${kindName(row)} ${percent(row.share)}` }), { "flex-grow": row.median_ns }));
  const label = rows.map((row) => `${kindName(row)} ${percent(row.share)}`).join(", ");
  return el("div", { class: "stack", role: "img", "aria-label": label }, ...parts);
}

function budgetTable(rows, of) {
  const leading = (row) => row.leading.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
  const lines = rows.map((row) => el("tr", {}, el("th", { scope: "row" }, swatch(kindTone(row)), ` ${kindName(row)}`),
    el("td", {}, duration(row.median_ns)), el("td", {}, percent(row.share)), el("td", {}, percent(row.total_share)),
    el("td", { class: "path" }, leading(row))));
  const headings = ["kind", of, "share", "of all", "led by"].map((text) => el("th", { scope: "col" }, text));
  return el("table", { class: "budget" }, el("thead", {}, el("tr", {}, ...headings)), el("tbody", {}, ...lines));
}

function addBudget() {
  const { rows, whole_ns: whole, of } = DATA.budget;
  if (!rows.length) return;
  section("budget", el("p", { class: "muted" }, `${capital(of)}: ${duration(whole)}.`), budgetBar(rows), budgetTable(rows, of));
}
