// The findings that would save most of a step, or of the recording, with what to do.

function addFindings() {
  const rows = DATA.findings;
  if (!rows.length) return;
  const lines = rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row.family.replaceAll("_", " ")),
    el("td", { class: "path" }, ...(row.saving_ns ? breakable(row.module) : [])),
    el("td", {}, row.saving_ns ? duration(row.saving_ns) : ""), el("td", {}, row.saving_ns ? percent(row.saving_share) : ""), el("td", { class: "what" }, inWords(row.advice))));
  const headings = ["finding", inWords("module"), "saves at most", `of the ${DATA.budget.of}`, "what to do"];
  section("findings", el("table", { class: "budget findings" },
    el("thead", {}, el("tr", {}, ...headings.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...lines)));
}
