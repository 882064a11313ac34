// Memory over a step: how much was held, and what each module allocated and kept.

const HELD = { width: 900, height: 160 };

// How much is held, as steps that are as high as the bytes.
function heldChart({ at_ns: at, bytes, module }) {
  const least = Math.min(0, ...bytes);
  const most = Math.max(...bytes, least + 1);
  const last = Math.max(at.at(-1), 1);
  const x = (ns) => (ns / last) * HELD.width;
  const y = (size) => HELD.height - ((size - least) / (most - least)) * HELD.height;
  const rects = at.map((ns, place) => svg("rect", { x: x(ns), width: Math.max(x(at[place + 1] ?? last) - x(ns), 1), y: y(Math.max(bytes[place], 0)), height: Math.abs(y(bytes[place]) - y(0)) },
    svg("title", {}, `${sizeText(bytes[place])} in ${TREES.modules.nodes[module[place]]?.path ?? inWords("a smaller module or none")}, at ${duration(ns)}`)));
  const peak = bytes.indexOf(Math.max(...bytes));
  const label = `Memory held, more than at the start: at most ${sizeText(bytes[peak])}, in ${TREES.modules.nodes[module[peak]]?.path ?? inWords("a smaller module or none")} at ${duration(at[peak])} of ${duration(last)}`;
  return el("figure", {}, el("figcaption", { class: "muted" }, `${label}.`),
    svg("svg", { viewBox: `0 0 ${HELD.width} ${HELD.height}`, preserveAspectRatio: "none", class: "held", role: "img", "aria-label": label }, ...rects));
}

function addMemory() {
  const { rows, held, step } = DATA.memory;
  if (!rows.length) return;
  const node = (row) => TREES.modules.nodes[row.module];
  const table = new SortedTable({ id: "memory-table", caption: "Modules by memory allocated", sort: "allocated_bytes", pageRows: FEW_ROWS, columns: [
    { name: "path", title: "module", of: (row) => node(row).path, cell: (row) => el("button", { type: "button", class: "path link", onclick: () => select(counterpart(node(row), selection.mode)) }, ...breakable(node(row).path)) },
    { name: "calls", title: "calls", number: true, of: (row) => row.calls, as: integer },
    { name: "allocated_bytes", title: "allocated", number: true, of: (row) => row.allocated_bytes, as: sizeText, help: "in its calls, with all below" },
    { name: "retained_bytes", title: "kept", number: true, of: (row) => row.retained_bytes, as: sizeText, help: "what its calls left more than they found" },
  ] });
  table.setRows(rows);
  const of = step ? `${step.kind === "step" ? "Step" : capital(`${step.kind} step`)} with index ${step.index}.` : "The recording.";
  section("memory", el("p", { class: "muted" }, of), heldChart(held), table.element);
}
