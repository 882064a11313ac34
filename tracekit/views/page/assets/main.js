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

addOverview();
addChanges();
if (TOTAL || TREES.modules.nodes.length) {
  byId("hierarchy").hidden = false;
  addIcicle();
  addCard();
}
addTypes();
addModules();
addKernels();
addSteps();
addTimeline();
addRoofline();
addIdle();
addProcesses();
addTheme();
addNavigation();
byId("made-by").textContent = `tracekit ${DATA.about.tracekit}`;
document.addEventListener("keydown", onPageKey);
document.documentElement.dataset.ready = "";
