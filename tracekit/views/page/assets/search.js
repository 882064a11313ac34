// The search for modules: it filters the table, stands out in the icicle, and tells the share of all matches.

const search = { query: "", lines: new Set() };

function isMatch(node) {
  const text = node.kind === "module" ? node.path : node.name;
  return matches(search.query, `${text} ${className(node)}`) || (node.tree === TREES.lines && search.lines.has(node.index));
}

// Matches that are in no other match: their times add up.
function topMatches(node) {
  if (node.kind !== "all" && node.kind !== "rest" && isMatch(node)) return [node];
  return node.children.flatMap(topMatches);
}

// Whether a node of the icicle is not in what was searched for.
function isFaded(node) {
  return Boolean(search.query) && ![node, ...node.ancestors].some((one) => one.kind !== "all" && isMatch(one));
}

function drawMatches() {
  const { tree } = selection.node;
  const single = tree.root === "modules" ? TREES.modules : tree;
  search.lines = new Set();
  const found = search.query ? single.nodes.filter(isMatch) : [];
  if (single === TREES.modules) search.lines = new Set(found.map((node) => DATA.nodes.modules.line[node.index]));
  const time = search.query ? topMatches(single.all).reduce((sum, node) => sum + node.subtree_ns, 0) : 0;
  const text = found.length ? `${counted(found.length, "match", "matches")}: ${percent(shareOf(time, single.all.subtree_ns))}, ${duration(time)}` : "no matches";
  byId("matches").textContent = search.query ? text : "";
}

function addSearch() {
  if (!TREES.modules.nodes.length) return;
  const field = searchField(inWords("Search modules: path or class"), "search-modules", (query) => {
    search.query = query;
    for (const draw of [drawMatches, drawIcicle, drawModules, writeLink]) draw();
  });
  byId("search-place").append(field, el("output", { id: "matches", class: "muted", for: "search-modules" }));
  onSelected(drawMatches);
  linked("search", () => search.query, searchFor);
}

// The type of numbered modules is named layers.*: search for layers.
function searchFor(text) {
  const field = byId("search-modules");
  field.value = text.replace(/\.\*$/, ".");
  field.dispatchEvent(new Event("input"));
}
