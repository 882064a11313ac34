// The timeline: the work of one step or of a whole recording, drawn on a canvas, with the same as a table.

const AXIS_PX = 22;
const TITLE_PX = 18;
const BAND_PX = 17;
const LANE_PX = 20;
const TEXT_PX = 26;
const BELOW_PX = 10;
const TEXT_ROWS = 100;
const MOST_ARROWS = 50;
const MOST_BANDED = 8; // streams, so that many ranks are seen at once
const OF_MODULE = -2; // as the name of a call on the host
const STREAM = WORDS.device === "CPU" ? "thread" : "stream";

const timeline = { drawn: null, pieces: null, streams: [], rows: [], places: new Map(), from: 0, to: 1, piece: null, pending: false, height: 0 };

function drawingName(drawing) {
  const { step } = drawing;
  const report = drawing.report ? `${drawing.report}: ` : "";
  if (!step) return `${report}whole recording, ${duration(drawing.span_ns)}`;
  const batch = step.batch_size === null ? "" : `, batch size ${step.batch_size}`;
  const kind = step.kind === "step" ? "" : ` ${step.kind}`;
  if (step.why === "all ranks") return `all ranks:${kind} step (index ${step.index}${batch}) on one clock`;
  return `${report}${step.why}${kind} step (index ${step.index}${batch}), ${duration(step.time_ns)}, ${duration(step.gpu_time_ns)} ${WORDS.device} time`;
}

function streamName(stream) {
  const part = (name, value) => (value === null || value === undefined ? null : `${name} ${value}`);
  const parts = [stream.report, part("device", stream.device), part("stream", stream.stream), part(stream.isHost ? "host thread" : "thread", stream.tid), part("process", stream.pid)];
  return parts.filter(Boolean).join(", ") || "device";
}

// The pieces of all streams, and after them the calls on threads of the host, which are streams, too.
function withHost({ pieces, host, streams }) {
  if (!host) return pieces;
  const more = { ...host, ns: host.length_ns, stream: host.stream.map((thread) => streams.length + thread), count: host.name.map(() => 1),
    line: host.module.map((module) => DATA.nodes.modules.line[module] ?? -1) };
  return { ...pieces, ...Object.fromEntries(Object.keys(more).map((name) => [name, pieces[name].concat(more[name])])) };
}

function threadsOf({ threads = [], host }) {
  return threads.map((thread, at) => ({ ...thread, isHost: true, lanes: 1 + Math.max(...host.lane.filter((_, call) => host.stream[call] === at)) }));
}

// Rows from top to bottom, threads of the host first: for each its name, bands of modules, and lanes of kernels.
function rowsOf(drawn) {
  const rows = [];
  let top = AXIS_PX;
  const { pieces, streams } = timeline;
  const order = streams.map((_, at) => at).sort((one, other) => Boolean(streams[other].isHost) - Boolean(streams[one].isHost));
  timeline.places = new Map();
  for (const at of order) {
    const stream = streams[at];
    const own = pieces.stream.flatMap((stream, piece) => (stream === at ? [piece] : []));
    rows.push({ kind: "title", top, text: streamName(stream), own });
    top += TITLE_PX;
    for (const runs of !stream.isHost && streams.length <= MOST_BANDED && drawn.work === drawn.pieces.name.length ? bandsOf(pieces, own) : []) {
      rows.push({ kind: "band", top, high: BAND_PX, runs });
      top += BAND_PX;
    }
    const looks = looksOf(pieces, own);
    const lanes = Array.from({ length: stream.lanes }, () => []);
    for (const piece of own) lanes[pieces.lane[piece]].push(piece);
    for (const lane of lanes) {
      const row = { kind: "lane", top, high: LANE_PX, looks, pieces: lane.sort((left, right) => pieces.start_ns[left] - pieces.start_ns[right]) };
      for (const piece of lane) timeline.places.set(piece, row);
      rows.push(row);
      top += LANE_PX;
    }
    top += BELOW_PX;
  }
  timeline.height = top;
  return rows;
}

// What names a drawing in the address of the page.
function drawingKey({ step, report }) {
  return step ? `${step.row}${step.why === "all ranks" ? " of all ranks" : ""}` : `all of ${report ?? "it"}`;
}

function choose(at) {
  byId("drawn").selectedIndex = at;
  const drawn = DATA.timeline.drawn[at];
  Object.assign(timeline, { drawn, pieces: withHost(drawn), streams: [...drawn.streams, ...threadsOf(drawn)] });
  Object.assign(timeline, { rows: rowsOf(drawn), to: Math.max(drawn.span_ns, 1), piece: null });
  timeline.from = leadOf(drawn) > drawn.span_ns / 2 ? leadOf(drawn) * 1.02 - drawn.span_ns * 0.02 : 0;
  describeTimeline();
  redraw();
}

// How long the host was ahead of the device.
function leadOf({ host, pieces }) {
  return host ? pieces.start_ns.reduce((least, start) => Math.min(least, start), Infinity) : 0;
}

function describeTimeline() {
  const { drawn, pieces } = timeline;
  const boxes = drawn.pieces.name.length;
  const merged = drawn.work > boxes ? `; neighbours are merged into ${counted(boxes, "box", "boxes")}` : "";
  const left = drawn.left_out ? `; ${counted(drawn.left_out, STREAM)} with the least time not drawn` : "";
  const calls = drawn.host?.name.length;
  const host = drawn.host ? `, ${drawn.calls > calls ? `${grouped(calls)} of ` : ""}${counted(drawn.calls, "call")} on ${counted(drawn.threads.length, "thread")} of the host` : "";
  const lead = timeline.from ? ` The host ran ${duration(leadOf(drawn))} ahead: Fit shows its calls, too.` : "";
  const text = `${counted(drawn.work, WORDS.work)} in ${duration(drawn.span_ns)} on ${counted(drawn.streams.length, STREAM)}${host}${merged}${left}.${lead}`;
  byId("timeline-summary").textContent = text;
  byId("canvas").setAttribute("aria-label", `Timeline: ${drawingName(drawn)}. ${text} Arrow keys select, plus and minus zoom.`);
  const order = pieces.start_ns.map((_, at) => at).sort((left, right) => pieces.start_ns[left] - pieces.start_ns[right]).slice(0, TEXT_ROWS);
  byId("timeline-rows").replaceChildren(plainTable(`The first ${TEXT_ROWS} boxes`, [
    ["start", (at) => duration(pieces.start_ns[at]), true], ["length", (at) => duration(pieces.length_ns[at]), true],
    [WORDS.work, (at) => pieceName(at)], [WORDS.node, (at) => pieceModule(at)], [STREAM, (at) => streamName(timeline.streams[pieces.stream[at]])],
  ], order));
}

function pieceName(at) {
  const { pieces } = timeline;
  const name = DATA.timeline.names[pieces.name[at]];
  if (pieces.name[at] === OF_MODULE) return TREES.modules.nodes[pieces.module[at]]?.name ?? inWords("smaller module");
  if (isHost(at)) return name ?? "other call";
  return name ?? `other ${WORDS.work}`;
}

function isHost(at) {
  return at >= timeline.drawn.pieces.name.length;
}

function pieceModule(at) {
  return TREES.modules.nodes[timeline.pieces.module[at]]?.path ?? inWords("no module");
}

function redraw() {
  if (timeline.pending || !timeline.drawn) return;
  timeline.pending = true;
  requestAnimationFrame(() => { timeline.pending = false; paint(); });
}

function paint() {
  const canvas = byId("canvas");
  const width = canvas.clientWidth;
  const scale = window.devicePixelRatio || 1;
  styled(canvas, { height: `${timeline.height}px` });
  Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(timeline.height * scale) });
  const pen = canvas.getContext("2d");
  const tones = palette();
  const perNs = width / (timeline.to - timeline.from);
  const brush = { pen, tones, width, x: (ns) => (ns - timeline.from) * perNs };
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  paintAxis(brush);
  for (const row of timeline.rows) PAINT[row.kind](brush, row);
  for (const [call, piece] of launchesAt(timeline.piece)) paintArrow(brush, call, piece);
  paintTies(brush, tiesOf(timeline.piece));
}

// The pieces of the same collective on all ranks, from top to bottom.
function tiesOf(at) {
  const { meeting } = timeline.pieces;
  if (at === null || !(meeting?.[at] >= 0)) return [];
  return meeting.flatMap((other, piece) => (other === meeting[at] ? [piece] : [])).sort((one, other) => timeline.places.get(one).top - timeline.places.get(other).top);
}

function paintTies({ pen, tones, x }, ties) {
  const { pieces, places } = timeline;
  pen.strokeStyle = tones.accent;
  pen.lineWidth = 2;
  for (const end of [0, 1]) {
    pen.beginPath();
    for (const at of ties) pen.lineTo(x(pieces.start_ns[at] + end * pieces.length_ns[at]), places.get(at).top + LANE_PX / 2);
    pen.stroke();
  }
}

// The pairs of a call and what it launched that a piece is in: a kernel, or a call of the API.
function launchesAt(at) {
  const { launch } = timeline.drawn.pieces;
  if (at === null || !launch) return [];
  const first = timeline.drawn.pieces.name.length;
  if (!isHost(at)) return launch[at] < 0 ? [] : [[first + launch[at], at]];
  return launch.flatMap((call, piece) => (first + call === at ? [[at, piece]] : [])).slice(0, MOST_ARROWS);
}

// From the return of a call to the start of what it launched.
function paintArrow({ pen, tones, x }, call, piece) {
  const { pieces, places } = timeline;
  const middle = (at) => places.get(at).top + LANE_PX / 2;
  const [left, right] = [x(pieces.start_ns[call] + pieces.length_ns[call]), x(pieces.start_ns[piece])];
  const [top, bottom] = [middle(call), middle(piece)];
  pen.strokeStyle = tones.accent;
  pen.fillStyle = tones.accent;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(left, top);
  pen.bezierCurveTo(left, (top + bottom) / 2, right, (top + bottom) / 2, right, bottom - 6);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(right, bottom);
  pen.lineTo(right - 4, bottom - 7);
  pen.lineTo(right + 4, bottom - 7);
  pen.fill();
}

function paintAxis({ pen, tones, width, x }) {
  const step = tickStep((timeline.to - timeline.from) / Math.max(width / 110, 1));
  for (let at = Math.ceil(timeline.from / step) * step; at <= timeline.to; at += step) {
    pen.fillStyle = tones.line;
    pen.fillRect(Math.round(x(at)), AXIS_PX - 5, 1, timeline.height);
    pen.fillStyle = tones.muted;
    pen.fillText(at ? duration(at) : "0", x(at) + 4, AXIS_PX / 2);
  }
}

// 1, 2 or 5 times a power of ten, at least the given value.
function tickStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least);
}

function paintBox(brush, { start, end, row, tone, shade, text, dim }) {
  const { pen, tones, x, width } = brush;
  const left = Math.max(x(start), 0);
  const wide = Math.max(Math.min(x(end), width) - left, 0.7);
  if (x(end) < 0 || left > width) return;
  pen.globalAlpha = dim ? 0.18 : 1;
  pen.fillStyle = tones[`${tone}-${shade}`];
  pen.fillRect(left, row.top, wide > 3 ? wide - 0.7 : wide, row.high - 2);
  if (wide > TEXT_PX) {
    pen.fillStyle = GREYS.includes(tone) ? tones.ink : tones["tone-ink"];
    pen.fillText(shortened(text(), wide - 8, pen.font), left + 4, row.top + row.high / 2 - 0.5);
  }
  pen.globalAlpha = 1;
}

const PAINT = {
  title({ pen, tones }, row) {
    pen.fillStyle = tones.muted;
    const { from, to, pieces } = timeline;
    const isSeen = row.own.some((at) => pieces.start_ns[at] <= to && pieces.start_ns[at] + pieces.length_ns[at] >= from);
    pen.fillText(isSeen ? row.text : `${row.text}: nothing in view`, 4, row.top + TITLE_PX / 2);
  },
  band(brush, row) {
    const { node } = selection;
    for (const run of row.runs) {
      const other = counterpart(run.node, selection.mode);
      const dim = node.kind !== "all" && !node.holds(other.index) && !other.holds(node.index);
      paintBox(brush, { ...run, row, text: () => run.node.name, dim });
    }
  },
  lane(brush, row) {
    const { pieces } = timeline;
    for (const at of row.pieces) {
      const { tone, shade } = row.looks.get(at);
      const start = pieces.start_ns[at];
      const dim = selection.node.kind !== "all" && !isSelected(pieces.module[at], pieces.line[at]);
      paintBox(brush, { start, end: start + pieces.length_ns[at], row, tone, shade, text: () => pieceName(at), dim });
      if (at === timeline.piece) outline(brush, row, at);
    }
  },
};

function outline({ pen, tones, x }, row, at) {
  const { pieces } = timeline;
  const left = x(pieces.start_ns[at]);
  pen.strokeStyle = tones.ink;
  pen.lineWidth = 2;
  pen.strokeRect(left, row.top, Math.max(x(pieces.start_ns[at] + pieces.length_ns[at]) - left, 3), row.high - 2);
}
