// Moving on the timeline with pointer, wheel and keys, and the text about the kernel that they point at.

const SHORTEST_NS = 200;
const DRAGGED_PX = 3;

function setView(from, to) {
  const span = Math.max(timeline.drawn.span_ns, 1);
  const wide = Math.min(Math.max(to - from, Math.min(SHORTEST_NS, span)), span);
  timeline.from = Math.min(Math.max(from, 0), span - wide);
  timeline.to = timeline.from + wide;
  redraw();
}

function zoom(factor, at = (timeline.from + timeline.to) / 2) {
  setView(at - (at - timeline.from) * factor, at + (timeline.to - at) * factor);
}

function pan(share) {
  const by = (timeline.to - timeline.from) * share;
  const from = Math.min(Math.max(timeline.from + by, 0), timeline.drawn.span_ns - (timeline.to - timeline.from));
  setView(from, from + (timeline.to - timeline.from));
}

function timeAt(event) {
  return timeline.from + (event.offsetX / byId("canvas").clientWidth) * (timeline.to - timeline.from);
}

function rowAt(y) {
  return timeline.rows.find((row) => row.high && y >= row.top && y < row.top + row.high);
}

// The kernel under the pointer, or the nearest within two pixels.
function pieceAt(event) {
  const row = rowAt(event.offsetY);
  if (row?.kind !== "lane") return null;
  const { pieces } = timeline;
  const reach = (2 * (timeline.to - timeline.from)) / byId("canvas").clientWidth;
  const at = timeAt(event);
  return row.pieces.find((piece) => at >= pieces.start_ns[piece] - reach && at <= pieces.start_ns[piece] + pieces.length_ns[piece] + reach) ?? null;
}

function runAt(event) {
  const row = rowAt(event.offsetY);
  const at = timeAt(event);
  return row?.kind === "band" ? row.runs.find((run) => at >= run.start && at <= run.end) ?? null : null;
}

function pieceText(at) {
  const { pieces } = timeline;
  const count = pieces.count[at];
  if (isHost(at)) return [pieceName(at), pieceModule(at), `${duration(pieces.length_ns[at])} on the host, starts at ${duration(pieces.start_ns[at])}`];
  const [[call] = []] = launchesAt(at);
  const launch = call === undefined ? null : `launched by ${pieceName(call)}, ${duration(Math.max(pieces.start_ns[at] - pieces.start_ns[call] - pieces.length_ns[call], 0))} before`;
  return [
    count > 1 ? `${counted(count, WORDS.work)}, mostly ${pieceName(at)}` : pieceName(at),
    pieceModule(at),
    `${duration(pieces.ns[at])}${pieces.ns[at] === pieces.length_ns[at] ? "" : ` within ${duration(pieces.length_ns[at])}`}, starts at ${duration(pieces.start_ns[at])}`, launch, tiesText(at),
  ].filter(Boolean);
}

// When the ranks of a collective began.
function tiesText(at) {
  const { pieces } = timeline;
  const starts = tiesOf(at).map((piece) => pieces.start_ns[piece]);
  if (starts.length < 2) return null;
  const late = pieces.start_ns[at] - Math.min(...starts);
  const last = late === Math.max(...starts) - Math.min(...starts) ? ", the last" : "";
  return `one of ${grouped(starts.length)} ranks of a collective, ${late ? `begins ${duration(late)} after the first${last}` : "the first to begin"}`;
}

function runText({ node, start, end }) {
  return [node.path, className(node), `${duration(end - start)} from first to last ${WORDS.work}, starts at ${duration(start)}`].filter(Boolean);
}

function tip(lines, event) {
  const place = byId("tip");
  place.hidden = !lines;
  if (!lines) return;
  place.replaceChildren(...lines.map((line, at) => el(at ? "span" : "strong", {}, line)));
  const wide = Math.min(place.offsetWidth, window.innerWidth - 16);
  styled(place, { left: `${Math.max(Math.min(event.clientX + 14, window.innerWidth - wide - 8), 8)}px`, top: `${event.clientY + 16}px` });
}

function onHover(event) {
  if (event.buttons) return;
  const piece = pieceAt(event);
  const run = piece === null ? runAt(event) : null;
  if (piece !== timeline.piece) {
    timeline.piece = piece;
    redraw();
  }
  tip(piece !== null ? pieceText(piece) : run && runText(run), event);
}

// Selects the next kernel in its lane, or in the lane above or below.
function stepTo(byPiece, byLane) {
  const lanes = timeline.rows.filter((row) => row.kind === "lane" && row.pieces.length);
  const chosen = (row) => (timeline.piece === null ? !isHost(row.pieces[0]) : row.pieces.includes(timeline.piece));
  let lane = Math.max(lanes.findIndex(chosen), 0);
  let at = lanes[lane].pieces.indexOf(timeline.piece);
  const { pieces } = timeline;
  if (byLane && lanes[lane + byLane]) {
    const start = at < 0 ? timeline.from : pieces.start_ns[lanes[lane].pieces[at]];
    lane += byLane;
    at = Math.max(lanes[lane].pieces.findLastIndex((piece) => pieces.start_ns[piece] <= start), 0);
  } else at = Math.min(Math.max(at + byPiece, 0), lanes[lane].pieces.length - 1);
  timeline.piece = lanes[lane].pieces[at];
  keepInView();
  const text = pieceText(timeline.piece);
  byId("timeline-piece").textContent = text.join(" \u00b7 ");
  announce(text.join(", "));
}

function keepInView() {
  const { pieces } = timeline;
  const start = pieces.start_ns[timeline.piece];
  const end = start + pieces.length_ns[timeline.piece];
  const wide = timeline.to - timeline.from;
  if (start < timeline.from || end > timeline.to) setView((start + end - wide) / 2, (start + end + wide) / 2);
  else redraw();
}

const MOVES = {
  ArrowRight: () => stepTo(1, 0), ArrowLeft: () => stepTo(-1, 0), ArrowDown: () => stepTo(0, 1), ArrowUp: () => stepTo(0, -1),
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => setView(0, timeline.drawn.span_ns),
  w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => pan(-0.2), d: () => pan(0.2), Escape: () => setView(0, timeline.drawn.span_ns),
  Enter: () => { if (timeline.piece !== null) selectPiece(timeline.piece); },
};

function selectPiece(at) {
  const node = TREES.modules.nodes[timeline.pieces.module[at]];
  if (node) select(counterpart(node, selection.mode));
}

function onMove(event) {
  const move = MOVES[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  move();
}

// The wheel zooms if the timeline has the focus, or with Ctrl; otherwise it scrolls the page.
function onWheel(event) {
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 800);
  else if (event.ctrlKey || document.activeElement === event.currentTarget) zoom(1.0015 ** event.deltaY, timeAt(event));
  else return;
  event.preventDefault();
}

function addDragging(canvas) {
  let begin = null;
  canvas.addEventListener("pointerdown", (event) => {
    begin = { x: event.clientX, from: timeline.from, to: timeline.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!begin || !event.buttons) return;
    const by = ((begin.x - event.clientX) / canvas.clientWidth) * (begin.to - begin.from);
    begin.moved ||= Math.abs(begin.x - event.clientX) > DRAGGED_PX;
    const from = Math.min(Math.max(begin.from + by, 0), timeline.drawn.span_ns - (begin.to - begin.from));
    if (begin.moved) setView(from, from + begin.to - begin.from);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (begin && !begin.moved) clickAt(event);
    begin = null;
  });
}

function clickAt(event) {
  const piece = pieceAt(event);
  const run = piece === null ? runAt(event) : null;
  if (piece !== null) selectPiece(piece);
  else if (run) select(counterpart(run.node, selection.mode));
}

// Zooms to the work of the selected module.
function zoomToSelected() {
  const { pieces } = timeline;
  const own = pieces.start_ns.flatMap((start, at) => (!isHost(at) && isSelected(pieces.module[at], pieces.line[at]) ? [at] : []));
  if (!own.length) return;
  const from = own.reduce((least, at) => Math.min(least, pieces.start_ns[at]), Infinity);
  const to = own.reduce((most, at) => Math.max(most, pieces.start_ns[at] + pieces.length_ns[at]), 0);
  const margin = (to - from) / 20;
  setView(from - margin, to + margin);
}

function addTimeline() {
  const { drawn } = DATA.timeline;
  if (!drawn.length) return;
  byId("timeline").hidden = false;
  const chooser = byId("drawn");
  chooser.append(...drawn.map((drawing, at) => el("option", { value: String(at) }, drawing.report ? drawingName(drawing) : capital(drawingName(drawing)))));
  chooser.addEventListener("change", () => { choose(Number(chooser.value)); writeLink(); });
  linked("step", () => (chooser.selectedIndex ? drawingKey(drawn[chooser.selectedIndex]) : ""), (key) => choose(Math.max(drawn.findIndex((drawing) => drawingKey(drawing) === key), 0)));
  const canvas = byId("canvas");
  canvas.addEventListener("mousemove", onHover);
  canvas.addEventListener("mouseleave", () => { timeline.piece = null; tip(null); redraw(); });
  canvas.addEventListener("keydown", onMove);
  canvas.addEventListener("wheel", onWheel, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.5, timeAt(event)));
  addDragging(canvas);
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-node").addEventListener("click", zoomToSelected);
  byId("zoom-all").addEventListener("click", () => setView(0, timeline.drawn.span_ns));
  onSelected(redraw);
  new ResizeObserver(redraw).observe(canvas.parentElement);
  choose(0);
}
