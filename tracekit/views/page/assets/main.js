// Puts the page together, part by part; a part of which there is nothing stays away.

function addNavigation() {
  const shown = [...document.querySelectorAll("main > section:not([hidden])")].filter((one) => one.querySelector("h2"));
  byId("navigation").append(...shown.map((one) => el("a", { href: `#${one.id}` }, one.dataset.short)));
}

// "/" goes to the search, as in other tools.
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
