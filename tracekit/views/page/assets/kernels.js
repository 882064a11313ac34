// The table of kernels: all, or those of the selected module.

let kernelTable = null;
let kernelQuery = "";
const ALL_ONLY = () => selection.node.kind !== "all" || selection.phase !== null;

const KERNEL_COLUMNS = [
  { name: "name", title: WORDS.work, of: (row) => row.name, cell: (row) => el("span", { class: "path" }, ...breakable(row.name)) },
  { name: "kind", title: "kind", of: (row) => row.kind, as: (kind) => kind },
  { name: "kernels", title: "count", number: true, of: (row) => row.kernels, as: integer },
  { name: "gpu_time_ns", title: "time", number: true, of: (row) => row.gpu_time_ns, as: duration },
  { name: "share", title: "share", number: true, of: (row) => row.share, cell: (row) => el("span", { class: "share" }, percent(row.share), bar(row.share)) },
  { name: "mean_ns", title: "mean", number: true, of: (row) => row.gpu_time_ns / row.kernels, as: duration },
  { name: "median_ns", title: "median", number: true, of: (row) => row.median_ns, as: duration, hidden: ALL_ONLY },
  { name: "max_ns", title: "longest", number: true, of: (row) => row.max_ns, as: duration, hidden: ALL_ONLY },
  { name: "serves", title: "fused for", of: (row) => row.serves ?? "", cell: (row) => el("span", { class: "path" }, ...breakable(row.serves ?? "")), hidden: () => !DATA.kernels.serves.some(Boolean) },
  { name: "modules", title: "modules", number: true, of: (row) => row.modules, as: integer, hidden: ALL_ONLY },
];

function drawKernels() {
  const { node } = selection;
  const { rows, rest } = kernelsOf(node);
  const whole = node.subtree_ns;
  const kernels = rows.map((row) => ({ ...rowOf(DATA.kernels, row.kernel), name: kernelName(row.kernel), kind: DATA.kernels.kind[row.kernel],
    kernels: row.kernels, gpu_time_ns: row.gpu_time_ns, share: shareOf(row.gpu_time_ns, whole) }));
  const left = rest > 0 && DATA.kernels.left_out ? `${duration(rest)} in ${WORDS.works} not listed (the ${grouped(DATA.kernels.left_out)} with the least time)` : "";
  const where = [node.kind === "all" ? "" : `inside ${node.path}`, selection.phase].filter(Boolean).join(", ");
  kernelTable.setRows(kernels.filter((row) => !kernelQuery || matches(kernelQuery, row.name)), [where, left].filter(Boolean).join(" \u00b7 "));
}

function addKernels() {
  if (!DATA.kernels.name.length) return;
  kernelTable = new SortedTable({ id: "kernels-table", caption: `${capital(WORDS.works)} by time`, columns: KERNEL_COLUMNS, sort: "gpu_time_ns", pageRows: FEW_ROWS });
  const field = searchField(`Search ${WORDS.works}`, "search-kernels", (query) => { kernelQuery = query; drawKernels(); writeLink(); });
  linked("kernels", () => kernelQuery, (query) => { field.value = query; field.dispatchEvent(new Event("input")); });
  byId("kernels").querySelector("h2").textContent = capital(WORDS.works);
  section("kernels", el("div", { class: "tools" }, field), kernelTable.element);
  onSelected(drawKernels);
  drawKernels();
}
