// Assembles the page. Sections without data stay hidden.

function addNavigation() {
  const shown = [...document.querySelectorAll("main > section:not([hidden])")].filter((section) => section.querySelector("h2"));
  byId("navigation").append(...shown.map((section) => el("a", { href: `#${section.id}` }, section.dataset.short)));
}

// "/" focuses the search, as in other tools.
function onPageKey(event) {
  const typing = event.target.matches("input, select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  byId("search-modules")?.focus();
}

// The words of the page itself that are about modules.
function addWords() {
  for (const heading of document.querySelectorAll("main h2")) heading.textContent = inWords(heading.textContent);
  for (const element of document.querySelectorAll("main [aria-label]")) element.setAttribute("aria-label", inWords(element.getAttribute("aria-label")));
  for (const part of document.querySelectorAll("main > section")) part.dataset.short = inWords(part.dataset.short);
  byId("zoom-node").textContent = inWords(byId("zoom-node").textContent);
  byId("why").textContent = DATA.about.why.join(" ");
  byId("why").hidden = !DATA.about.why.length;
}

addWords();
addBudget();
addFindings();
addOverview();
addChanges();
if (TOTAL || TREES.modules.nodes.length) {
  byId("hierarchy").hidden = false;
  addPhases();
  addIcicle();
  addRoots();
  addOrder();
  addColours();
  linked("module", () => (selection.node.kind === "all" ? "" : selection.node.path), selectPath);
  addSearch();
  addCard();
}
addTypes();
addModules();
addKernels();
addSteps();
addTimeline();
addRoofline();
addMemory();
addRanks();
addIdle();
addProcesses();
addTheme();
addNavigation();
addLink();
byId("made-by").textContent = `tracekit ${DATA.about.tracekit}`;
document.addEventListener("keydown", onPageKey);
document.documentElement.dataset.ready = "";
