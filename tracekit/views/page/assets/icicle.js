// The hierarchy as an icicle: submodules are drawn below their module, each as wide as the time of its subtree.

const ROW_PX = 34;
const ABOVE_PX = 26;
const LEVELS = 11;
const MOST_ABOVE = 8;
const NARROWEST_PX = 3;
const PADDING_PX = 8;
const GAP_PX = 7;
const BADGE_PX = 11;

const icicle = { cells: [], above: 0, place: null, focused: null, fonts: {} };

// Where to draw each visible node: ancestors of the selected node over the full width, then its subtree.
function layout(width) {
  const { node } = selection;
  const cells = [];
  for (const above of node.ancestors.slice(-MOST_ABOVE)) cells.push({ node: above, depth: cells.length, left: 0, width, above: true, over: cells.at(-1) });
  icicle.above = cells.length;
  const ahead = [{ node, depth: cells.length, left: 0, width, over: cells.at(-1) }];
  while (ahead.length) {
    const cell = ahead.pop();
    cells.push(cell);
    const whole = !cell.own && !cell.small;
    if (whole && cell.depth - icicle.above < LEVELS) ahead.push(...below(cell).reverse());
  }
  return shaded(cells);
}

// Gives each cell a shade that is neither that of the cell above nor that of the one to its left.
function shaded(cells) {
  const last = [];
  for (const cell of cells.toSorted((one, other) => one.depth - other.depth || one.left - other.left)) {
    cell.shade = freeShade(toneOfCell(cell), [cell.over?.shade, last[cell.depth]?.shade]);
    last[cell.depth] = cell;
  }
  return cells;
}

function toneOfCell({ node, own, small }) {
  if (own) return ownTone(node);
  return small || node.kind === "rest" ? "tone-small" : toneOf(node);
}

function below(over) {
  const { node, depth, left, width } = over;
  const cells = [];
  const scale = node.subtree_ns ? width / node.subtree_ns : 0;
  let at = left;
  let small = { count: 0, ns: 0 };
  for (const child of node.children) {
    const wide = child.subtree_ns * scale;
    if (wide < NARROWEST_PX) small = { count: small.count + 1, ns: small.ns + child.subtree_ns };
    else {
      cells.push({ node: child, depth: depth + 1, left: at, width: wide, over });
      at += wide;
    }
  }
  if (small.ns * scale >= 1) {
    cells.push({ node, small, depth: depth + 1, left: at, width: small.ns * scale, over });
    at += small.ns * scale;
  }
  if (node.children.length && node.self_ns * scale >= 1) {
    cells.push({ node, own: true, depth: depth + 1, left: at, width: node.self_ns * scale, over });
  }
  return cells;
}

function nodeLabel(node) {
  const copies = node.modules > 1 ? `, ${counted(node.modules, "module")}` : "";
  const type = className(node);
  const phases = phaseText(node);
  return `${node.name}${type && `, ${type}`}${copies}: ${duration(node.subtree_ns)}, ${percent(node.share)} of ${selection.phase ?? WORDS.device} time${phases && `; ${phases}`}${node.change_ns ? `; changed by ${changeText(node)} a step` : ""}`;
}

// Rows of ancestors are less high than the others.
function topOf(depth) {
  const above = Math.min(depth, icicle.above);
  return above * ABOVE_PX + (depth - above) * ROW_PX;
}

function cellOf(cell) {
  const { node, depth, left, width, own, small } = cell;
  const tone = toneOfCell(cell);
  const shade = tone === "tone-small" ? `${NEUTRAL}-${cell.shade}` : `${tone}-${cell.shade}`;
  const box = { left: `${left}px`, top: `${topOf(depth)}px`, width: `${Math.max(width - 1, 1)}px`, "--tone": `var(--${shade})` };
  const changed = differs.shown && !own && !small ? changeColour(node) : null;
  if (differs.shown) box["--tone"] = changed ?? `var(--${NEUTRAL}-${cell.shade})`;
  const time = own ? "self_ns" : "subtree_ns";
  const phases = PHASES.length && !small ? styled(el("span", { class: "stripes", "aria-hidden": "true" }), { background: phaseStripes(phaseParts(node, time, node[time])) }) : null;
  const text = small ? [] : own ? ownText(width) : cellText(node, width);
  const looks = `cell ${differs.shown && tone !== "tone-small" ? NEUTRAL : tone} ${text.length ? "named" : ""} ${phases ? "striped" : ""} ${own ? "own" : ""} ${cell.above ? "above" : ""} ${isFaded(node) ? "faded" : ""}`;
  if (own || small) {
    const title = own ? `${node.name}, self: ${duration(node.self_ns)}` : `${counted(small.count, "small module")} in ${node.name}: ${duration(small.ns)}`;
    return styled(el("div", { class: looks, title, "aria-hidden": "true" }, ...text, phases), box);
  }
  cell.element = el("div", {
    class: looks, title: nodeLabel(node),
    role: "treeitem", tabindex: "-1", id: `node-${treeIndex(node)}`, "aria-label": nodeLabel(node), "aria-level": String(selection.node.ancestors.length - icicle.above + depth + 1),
    "aria-selected": String(node === selection.node), "aria-posinset": String((node.parent?.children.indexOf(node) ?? 0) + 1),
    "aria-setsize": String(node.parent?.children.length ?? 1), "aria-expanded": node.children.length ? String(depth - icicle.above < LEVELS) : null,
    onclick: () => select(node), onfocus: () => show(node), onblur: () => show(null),
  }, ...text, phases);
  return styled(cell.element, box);
}

// An id of a node that is unique on the page.
function treeIndex(node) {
  return node.kind === "module" ? node.index : node.number !== undefined ? `up-${node.number}` : `${node.kind}-${node.parent?.index ?? "all"}-${node.parent?.children.indexOf(node) ?? 0}`;
}

function ownText(width) {
  return textWidth("self", icicle.fonts.own) <= roomIn(width) ? ["self"] : [];
}

function roomIn(width) {
  return width - 1 - 2 * PADDING_PX;
}

// The name, and if it is whole, as much of the rest as there is room for: copies, share, class.
function cellText(node, width) {
  const { fonts } = icicle;
  const name = shortened(node.name, roomIn(width), fonts.name);
  let room = roomIn(width) - textWidth(name, fonts.name);
  const part = (kind, text, more = 0) => {
    const wide = textWidth(text, fonts[kind]) + more + GAP_PX;
    if (!text || name !== node.name || wide > room) return null;
    room -= wide;
    return el("span", { class: kind }, text);
  };
  const times = part("times", node.copies > 1 ? `${grouped(node.copies)} \u00d7` : "", BADGE_PX);
  const share = part("part", differs.shown && node.change_ns ? `${changeText(node)}` : percent(node.share));
  const type = part("class", className(node));
  return name ? [el("span", { class: "name" }, name), type, times, share].filter(Boolean) : [];
}

// The fonts of the texts in cells, read off a cell that is drawn for a moment.
function fontsOfCells() {
  const parts = ["name", "times", "part", "class"].map((kind) => el("span", { class: kind }));
  const [named, own] = [el("div", { class: "cell" }, ...parts), el("div", { class: "cell own" })];
  icicle.place.append(named, own);
  icicle.fonts = Object.fromEntries([...parts.map((part) => [part.className, fontOf(part)]), ["own", fontOf(own)]]);
  icicle.place.replaceChildren();
}

function drawIcicle() {
  const width = icicle.place.clientWidth;
  if (!width) return;
  icicle.cells = layout(width);
  const rows = Math.max(...icicle.cells.map((cell) => cell.depth)) + 1;
  styled(icicle.place, { height: `${topOf(rows)}px` });
  const hadFocus = icicle.place.contains(document.activeElement);
  icicle.place.replaceChildren(...icicle.cells.map(cellOf));
  rove(selection.node, hadFocus);
  drawCrumbs();
}

// The Tab key reaches one cell; arrow keys move to the others.
function rove(node, focus = true) {
  const cell = icicle.cells.find((candidate) => candidate.element && candidate.node === node) ?? icicle.cells[0];
  icicle.focused?.element?.setAttribute("tabindex", "-1");
  icicle.focused = cell;
  cell.element.setAttribute("tabindex", "0");
  if (focus) cell.element.focus({ preventScroll: true });
}

function drawCrumbs() {
  const { ancestors } = selection.node;
  const shown = ancestors.length > MOST_ABOVE ? [ancestors[0], null, ...ancestors.slice(1 - MOST_ABOVE)] : ancestors;
  const crumbs = shown.map((node) => el("li", {}, node
    ? el("button", { type: "button", onclick: () => select(node) }, node.name) : "\u2026"));
  byId("crumbs").replaceChildren(...crumbs, el("li", {}, el("span", { "aria-current": "location" }, selection.node.name)));
}

const ICICLE_KEYS = {
  ArrowDown: (cell) => visibleChild(cell.node),
  ArrowUp: (cell) => cell.node.parent,
  ArrowLeft: (cell) => beside(cell, -1),
  ArrowRight: (cell) => beside(cell, 1),
  Home: () => icicle.cells[0].node,
  End: () => icicle.cells.findLast((cell) => cell.element).node,
};

function visibleChild(node) {
  return node.children.find((child) => icicle.cells.some((cell) => cell.element && cell.node === child));
}

// The next cell in the same row.
function beside(cell, step) {
  const row = icicle.cells.filter((candidate) => candidate.element && candidate.depth === cell.depth).sort((left, right) => left.left - right.left);
  return row[row.indexOf(cell) + step]?.node;
}

function onIcicleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in ICICLE_KEYS) {
    const next = ICICLE_KEYS[event.key](icicle.focused);
    if (next) rove(next);
  } else if (event.key === "Enter" || event.key === " ") select(icicle.focused.node);
  else if (event.key === "Escape" || event.key === "Backspace") select(selection.node.parent ?? selection.node);
  else return;
  event.preventDefault();
}

// Only if the pointer itself moved: a click redraws the cells below it, which fires this event too.
function onIcicleMove(event) {
  if (!event.movementX && !event.movementY) return;
  const item = event.target.closest("[role=treeitem]");
  show(icicle.cells.find((cell) => cell.element && cell.element === item)?.node ?? null);
}

function setFold(folded) {
  byId("fold").checked = folded;
  setMode(folded ? "lines" : "modules");
}

function addIcicle() {
  icicle.place = byId("icicle");
  if (FOLDS) {
    const fold = el("input", { type: "checkbox", role: "switch", id: "fold", checked: true });
    fold.addEventListener("change", () => setMode(fold.checked ? "lines" : "modules"));
    linked("fold", () => (fold.checked ? "" : "no"), (text) => setFold(text !== "no"));
    byId("fold-place").append(el("label", { for: "fold" }, fold, " fold equal layers"));
  }
  icicle.place.addEventListener("mousemove", onIcicleMove);
  icicle.place.addEventListener("mouseleave", () => show(null));
  icicle.place.addEventListener("keydown", onIcicleKey);
  fontsOfCells();
  onSelected(drawIcicle);
  new ResizeObserver(() => { if (icicle.place.clientWidth !== icicle.drawn) { icicle.drawn = icicle.place.clientWidth; drawIcicle(); } }).observe(icicle.place);
  drawIcicle();
}
