// The roofline: FLOP/s of modules by FLOPs per byte, on logarithmic axes, below the peaks of the device.

const ROOF = { width: 900, height: 420, left: 64, right: 20, top: 16, bottom: 46 };

function roofScales(points, roofs) {
  const xs = [...points.map((point) => point.flops_per_byte), ...roofs.map((roof) => (roof.peak_tflops_per_s * 1000) / roof.peak_gb_per_s)];
  const ys = [...points.map((point) => point.tflops_per_s), ...roofs.map((roof) => roof.peak_tflops_per_s)];
  const range = (values) => [Math.floor(Math.log10(Math.min(...values)) - 0.1), Math.ceil(Math.log10(Math.max(...values)) + 0.1)];
  const [x0, x1] = range(xs);
  const [y0, y1] = range(ys);
  const x = (value) => ROOF.left + ((Math.log10(value) - x0) / (x1 - x0)) * (ROOF.width - ROOF.left - ROOF.right);
  const y = (value) => ROOF.height - ROOF.bottom - ((Math.log10(value) - y0) / (y1 - y0)) * (ROOF.height - ROOF.top - ROOF.bottom);
  return { x, y, x0, x1, y0, y1 };
}

function roofAxes({ x, y, x0, x1, y0, y1 }) {
  const parts = [];
  for (let power = x0; power <= x1; power += 1) {
    parts.push(svg("line", { x1: x(10 ** power), x2: x(10 ** power), y1: ROOF.top, y2: ROOF.height - ROOF.bottom, class: "grid" }),
      svg("text", { x: x(10 ** power), y: ROOF.height - ROOF.bottom + 16, "text-anchor": "middle" }, figure(10 ** power)));
  }
  for (let power = y0; power <= y1; power += 1) {
    parts.push(svg("line", { x1: ROOF.left, x2: ROOF.width - ROOF.right, y1: y(10 ** power), y2: y(10 ** power), class: "grid" }),
      svg("text", { x: ROOF.left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, figure(10 ** power)));
  }
  return [...parts, svg("text", { x: ROOF.width / 2, y: ROOF.height - 8, "text-anchor": "middle", class: "axis" }, "FLOPs per byte"),
    svg("text", { x: ROOF.left, y: ROOF.top - 4, class: "axis" }, "TFLOP/s")];
}

// The limit: rising where memory limits, then flat.
function roofLine(roof, { x, y, x0, x1, y0 }) {
  const bend = (roof.peak_tflops_per_s * 1000) / roof.peak_gb_per_s;
  const low = Math.max(10 ** x0, (10 ** y0 * 1000) / roof.peak_gb_per_s);
  const points = [[low, (low * roof.peak_gb_per_s) / 1000], [bend, roof.peak_tflops_per_s], [10 ** x1, roof.peak_tflops_per_s]];
  const name = `${roof.dtype ? `${roof.dtype}: ` : ""}${figure(roof.peak_tflops_per_s)} TFLOP/s, ${figure(roof.peak_gb_per_s)} GB/s`;
  return [svg("polyline", { points: points.map(([flops, rate]) => `${x(flops)},${y(rate)}`).join(" "), class: "roof" }),
    svg("text", { x: ROOF.width - ROOF.right, y: y(roof.peak_tflops_per_s) - 6, "text-anchor": "end", class: "roof-name" }, name)];
}

function roofPoint(point, scales, most) {
  const node = TREES.modules.nodes[point.module];
  const share = point.roof_share === null ? "" : `, ${percent(point.roof_share)} of the roof`;
  const label = `${point.path}: ${figure(point.tflops_per_s)} TFLOP/s, ${figure(point.flops_per_byte)} FLOPs per byte, ${duration(point.self_ns)}${share}`;
  return svg("circle", { cx: scales.x(point.flops_per_byte), cy: scales.y(point.tflops_per_s), r: 3 + 17 * Math.sqrt(point.self_ns / most), class: node ? toneOf(node) : NEUTRAL,
    onclick: () => chooseModule(point) }, svg("title", {}, label));
}

function chooseModule(point) {
  const node = TREES.modules.nodes[point.module];
  if (node) select(counterpart(node, selection.mode));
}

function roofTable(points) {
  const table = new SortedTable({ id: "roofline-table", caption: "Modules by FLOP/s and GB/s", sort: "self_ns", pageRows: FEW_ROWS, columns: [
    { name: "path", title: "module", of: (row) => row.path, cell: (row) => el("button", { type: "button", class: "path link", onclick: () => chooseModule(row) }, ...breakable(row.path)) },
    { name: "dtype", title: "dtype", of: (row) => row.dtype, as: (dtype) => dtype ?? "" },
    { name: "self_ns", title: "self", number: true, of: (row) => row.self_ns, as: duration },
    { name: "tflops_per_s", title: "TFLOP/s", number: true, of: (row) => row.tflops_per_s, as: figure },
    { name: "gb_per_s", title: "GB/s", number: true, of: (row) => row.gb_per_s, as: figure },
    { name: "flops_per_byte", title: "FLOPs per byte", number: true, of: (row) => row.flops_per_byte, as: figure },
    { name: "roof_share", title: "share of roof", number: true, of: (row) => row.roof_share, as: percent },
    { name: "bound", title: "bound by", of: (row) => row.bound, as: (bound) => bound ?? "" },
  ] });
  table.setRows(points);
  return table.element;
}

function addRoofline() {
  if (!DATA.roofline || !DATA.about.rows.modules) return;
  const { points, roofs, notes } = DATA.roofline;
  const paragraphs = notes.map((note) => el("p", { class: "muted" }, inWords(note)));
  if (!points.length) {
    section("roofline", ...paragraphs);
    return;
  }
  const drawn = points.filter((point) => point.tflops_per_s > 0).sort((left, right) => right.self_ns - left.self_ns);
  if (!drawn.length) {
    section("roofline", ...paragraphs, roofTable(points));
    return;
  }
  const scales = roofScales(drawn, roofs);
  const most = Math.max(...drawn.map((point) => point.self_ns), 1);
  const chart = svg("svg", { viewBox: `0 0 ${ROOF.width} ${ROOF.height}`, class: "chart", role: "img", "aria-label": "Roofline chart; the table below has the same figures" },
    ...roofAxes(scales), ...roofs.flatMap((roof) => roofLine(roof, scales)), ...drawn.map((point) => roofPoint(point, scales, most)));
  section("roofline", ...paragraphs, chart, roofTable(points));
}
