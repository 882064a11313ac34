// The state of the page in the fragment of its address, so that a copied address shows the same again.

const LINKED = []; // in the order in which they are restored: { name, get: () => text or "", set: text → void }
const LINK_DELAY_MS = 250; // browsers refuse an address that changes with every key
let linkPending = null;

function linked(name, get, set) {
  LINKED.push({ name, get, set });
}

function writeLink() {
  if (location.protocol === "about:") return; // a notebook's frame has no address
  clearTimeout(linkPending);
  linkPending = setTimeout(() => {
    const parts = LINKED.map(({ name, get }) => [name, get()]).filter(([, text]) => text);
    const isOurs = location.hash === "" || location.hash.includes("=");
    if (parts.length || isOurs) history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
  }, LINK_DELAY_MS);
}

// The address of a section holds no state: the state is written back.
function readLink() {
  if (!location.hash.includes("=")) return writeLink();
  const parts = new URLSearchParams(location.hash.slice(1));
  for (const { name, set } of LINKED) set(parts.get(name) ?? "");
}

function addLink() {
  if (location.hash.includes("=")) readLink();
  onSelected(writeLink);
  window.addEventListener("hashchange", readLink);
}
