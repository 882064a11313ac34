// Idle time of devices, and the processes that used them.

function deviceName(row) {
  const device = row.device === null ? (WORDS.device === "CPU" ? "CPU" : "unknown device") : `device ${row.device}`;
  return row.report ? `${row.report}, ${device}` : device;
}

function addIdle() {
  const { devices, pairs, left_out: left } = DATA.idle;
  if (!pairs.length) return;
  const several = devices.length > 1 ? [plainTable("Idle time by device", [
    ["device", deviceName], ["gaps", (row) => integer(row.gaps), true], ["idle", (row) => duration(row.idle_ns), true],
    ["share of time", (row) => percent(row.share), true], ["longest", (row) => duration(row.longest_ns), true],
  ], devices)] : [];
  const table = new SortedTable({ id: "idle-table", caption: "Idle time by the modules before and after", sort: "idle_ns", pageRows: FEW_ROWS, columns: [
    ...(devices.length > 1 ? [{ name: "device", title: "device", of: deviceName, as: (name) => name }] : []),
    { name: "before", title: "after module", of: (row) => row.before, cell: (row) => el("span", { class: "path" }, ...breakable(row.before ?? inWords("no module"))) },
    { name: "after", title: "before module", of: (row) => row.after, cell: (row) => el("span", { class: "path" }, ...breakable(row.after ?? inWords("no module"))) },
    { name: "gaps", title: "gaps", number: true, of: (row) => row.gaps, as: integer },
    { name: "idle_ns", title: "idle", number: true, of: (row) => row.idle_ns, as: duration },
    { name: "share", title: "share of time", number: true, of: (row) => row.share, as: percent },
    { name: "median_ns", title: "median", number: true, of: (row) => row.median_ns, as: duration },
    { name: "longest_ns", title: "longest", number: true, of: (row) => row.longest_ns, as: duration },
  ] });
  table.setRows(pairs);
  if (WORDS.device === "CPU") byId("idle").querySelector("h2").textContent = "Between operators";
  const more = left ? [el("p", { class: "muted" }, `${counted(left, "more pair")} with less idle time: see tracekit show gaps`)] : [];
  section("idle", ...several, table.element, ...more);
}

function addProcesses() {
  const { rows, left_out: left } = DATA.processes;
  if (rows.length < 2) return;
  const most = Math.max(...rows.map((row) => row.gpu_time_ns), 1);
  const any = (name) => rows.some((row) => row[name] !== null);
  const columns = [
    ["report", (row) => row.report ?? ""], ["rank", (row) => String(row.rank ?? ""), true], ["process", (row) => String(row.pid ?? ""), true],
    ["device", (row) => String(row.device ?? ""), true], [WORDS.works, (row) => integer(row.kernels), true],
    ["time", (row) => duration(row.gpu_time_ns), true], ["bar", (row) => bar(row.gpu_time_ns / most), false, true], ["attributed", (row) => percent(row.known), true],
  ];
  const needed = { report: "report", rank: "rank", device: "device" };
  const more = left ? [el("p", { class: "muted" }, `${grouped(left)} more: see tracekit show processes`)] : [];
  section("processes", plainTable(`${WORDS.device} time by process`, columns.filter(([title]) => !needed[title] || any(needed[title])), rows), ...more);
}
