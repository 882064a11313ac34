// Every type of layer has a tone: the one that its name asks for, or the next that is free. The types of the most time
// choose first, so that a model keeps its tones from one page to the next.

const TONES = 12;
const SHADES = 3;
const NEUTRAL = "tone-none";
const GREYS = [NEUTRAL, "tone-unknown"];
const OWN_SHADES = new Map([...Array(TONES).keys()].map((tone) => [`tone-${tone}`, tone % SHADES])).set("tone-unknown", 1);
const MOSTLY_OWN = 0.1;

function toneNumber(text) {
  let hash = 2166136261;
  for (let at = 0; at < text.length; at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 16777619);
  }
  return (hash >>> 0) % TONES;
}

const TYPE_TONES = (() => {
  const taken = new Set();
  return TYPES.map((type) => {
    if (!type.self_ns || taken.size === TONES) return NEUTRAL;
    let tone = toneNumber(type.class_name ?? type.name);
    while (taken.has(tone)) tone = (tone + 1) % TONES;
    taken.add(tone);
    return `tone-${tone}`;
  });
})();

// A module's class as recorded by markers, or "".
function className(node) {
  return node.kind === "class" ? "" : node.type?.class_name ?? "";
}

function typeName(type) {
  return type ? type.class_name ?? type.name : "";
}

// The tone of a module's own kernels.
function ownTone(node) {
  if (node.kind === "unknown" || node.kind === "cause") return "tone-unknown";
  return TYPE_TONES[node.typeIndex] ?? NEUTRAL;
}

// Modules that mostly contain others have no colour: colour shows where time was spent.
function toneOf(node) {
  return node.kind === "module" && node.self_ns < MOSTLY_OWN * node.subtree_ns ? NEUTRAL : ownTone(node);
}

// Without any modules, the tone of a kernel is that of its name; the most frequent names have one.
function nameTone(name) {
  return TREES.modules.nodes.length || name < 0 || name >= TONES ? "tone-unknown" : `tone-${name}`;
}

// The shade of a box in this tone that its neighbours have not taken, if possible the tone's own. A box has two
// neighbours, the one above and the one before it in its row, and there are three shades.
function freeShade(tone, taken) {
  const own = OWN_SHADES.get(tone) ?? 0;
  return [own, (own + 1) % SHADES, (own + 2) % SHADES].find((shade) => !taken.includes(shade));
}

// The colours of the style sheet, for the canvas.
function palette() {
  const styles = getComputedStyle(document.documentElement);
  const tones = [...Array(TONES).keys()].map((tone) => `tone-${tone}`).concat(GREYS);
  const names = tones.flatMap((tone) => [tone, ...[...Array(SHADES).keys()].map((shade) => `${tone}-${shade}`)]);
  const words = ["ink", "muted", "line", "surface", "tone-ink", "accent", "sunken"];
  return Object.fromEntries([...names, ...words].map((name) => [name, styles.getPropertyValue(`--${name}`).trim()]));
}
