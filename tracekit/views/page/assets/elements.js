// Elements from names, attributes and children. Data becomes text nodes only, never markup.

const SVG = "http://www.w3.org/2000/svg";

function assembled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function el(name, attributes = {}, ...children) {
  return assembled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return assembled(document.createElementNS(SVG, name), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

// Sets styles. The page's policy forbids style attributes, but allows this.
function styled(element, styles) {
  for (const [name, value] of Object.entries(styles)) element.style.setProperty(name, value);
  return element;
}

// A path that may be broken at dots and underscores.
function breakable(path) {
  return path.split(/(?<=[._])/).flatMap((part, at) => (at ? [el("wbr"), part] : [part]));
}

// A bar as long as the share.
function bar(share, tone) {
  const inside = styled(el("span", { class: `fill ${tone ?? ""}` }), { width: `${Math.min(share, 1) * 100}%` });
  return el("span", { class: "bar", "aria-hidden": "true" }, inside);
}

function swatch(tone) {
  return el("span", { class: `swatch ${tone}`, "aria-hidden": "true" });
}

// Tells screen readers what changed.
function announce(text) {
  byId("announcement").textContent = text;
}

function section(id, ...children) {
  const place = byId(id);
  place.hidden = false;
  place.append(...children.filter((child) => child !== null));
  return place;
}

// A list of names and values.
function facts(pairs) {
  return el(
    "dl",
    { class: "facts" },
    ...pairs.filter(([, value]) => value !== "").map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}
