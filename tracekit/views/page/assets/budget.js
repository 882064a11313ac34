// Where the wall clock of the median step went: one bar, and a line for each kind with the modules that lead it.

function addBudget() {
  const { rows, whole_ns: whole, of } = DATA.budget;
  if (!rows.length) return;
  const named = (row) => row.kind.replaceAll("_", " ");
  const tone = (at) => `tone-${at % 12}`;
  const parts = rows.map((row, at) => [row, at]).filter(([row]) => row.median_ns).map(([row, at]) =>
    styled(el("span", { class: tone(at), title: named(row) }), { "flex-grow": row.median_ns, "min-width": "2px" }));
  const label = rows.map((row) => `${named(row)} ${percent(row.share)}`).join(", ");
  const leading = (row) => row.leading.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
  const lines = rows.map((row, at) => el("tr", {}, el("th", { scope: "row" }, swatch(tone(at)), ` ${named(row)}`),
    el("td", {}, duration(row.median_ns)), el("td", {}, percent(row.share)), el("td", {}, percent(row.total_share)),
    el("td", { class: "path" }, leading(row))));
  const headings = ["kind", of, "share", "of all", "led by"].map((text) => el("th", { scope: "col" }, text));
  section("budget", el("p", { class: "muted" }, `${capital(of)}: ${duration(whole)}.`),
    el("div", { class: "stack", role: "img", "aria-label": label }, ...parts),
    el("table", { class: "budget" }, el("thead", {}, el("tr", {}, ...headings)), el("tbody", {}, ...lines)));
}
