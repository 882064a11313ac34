// Numbers for people, written exactly as in the terminal (tracekit/views/formatting.py).

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]];
const SHOWN_AS_ZERO = 0.0005;

// Ties round to the even digit, as in Python; JavaScript would round them up. 60 digits show a tie exactly.
function tied(exact, digits) {
  const figures = exact.replace(/^[-0.]+|\./g, "");
  return /^50*$/.test(figures.slice(digits)) && Number(figures[digits - 1]) % 2 === 0;
}

function precise(value, digits) {
  if (value === 0) return "0";
  const [figures, exponent] = value.toExponential(60).split("e");
  const kept = tied(figures, digits) ? figures.slice(0, digits + 1) : Number(value).toPrecision(digits);
  return tied(figures, digits) ? String(Number(`${kept}e${exponent}`)) : String(Number(kept));
}

function fixed(value, decimals) {
  const exact = value.toFixed(60);
  const [whole, rest] = exact.split(".");
  const last = decimals ? rest[decimals - 1] : whole.at(-1);
  const isTie = /^50*$/.test(rest.slice(decimals)) && Number(last) % 2 === 0;
  return isTie ? exact.slice(0, whole.length + (decimals && decimals + 1)) : value.toFixed(decimals);
}

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

// Nanoseconds in the largest unit that fits, three digits: 1.23 ms.
function duration(ns) {
  if (ns === null) return "";
  if (ns < 0) return `-${duration(-ns)}`;
  const [size, unit] = UNITS.find(([least]) => ns >= 0.9995 * least) ?? UNITS.at(-1);
  return `${ns < 999.5 * size ? precise(ns / size, 3) : grouped(fixed(ns / size, 0))} ${unit}`;
}

// A share as a percentage: 12.3 %. Only exactly nothing is 0.0 %, only exactly all is 100.0 %.
function percent(share) {
  if (share === null || Number.isNaN(share)) return "";
  if (share && Math.abs(share) < SHOWN_AS_ZERO) return "<0.1 %";
  if (share > 1 - SHOWN_AS_ZERO && share < 1) return ">99.9 %";
  return `${fixed(share * 100, 1)} %`;
}

function signed(value, format) {
  return `${value < 0 ? "-" : "+"}${format(Math.abs(value))}`;
}

function integer(number) {
  return number === null ? "" : grouped(number);
}

// A number without a unit, three digits.
function figure(number) {
  if (number === null) return "";
  return Math.abs(number) >= 999.5 ? grouped(fixed(number, 0)) : precise(number, 3);
}

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// Bytes in the largest decimal unit that fits, three digits.
function sizeText(bytes) {
  if (bytes === null) return "";
  if (bytes < 0) return `-${sizeText(-bytes)}`;
  const [size, prefix] = PREFIXES.find(([least]) => bytes >= 0.9995 * least) ?? [1, ""];
  return `${figure(bytes / size)} ${prefix}B`;
}

function counted(number, singular, plural = `${singular}s`) {
  return `${grouped(number)} ${inWords(number === 1 ? singular : plural)}`;
}

// A text of this page about modules, in the word for what the hierarchy holds: ranges or operators, say.
function inWords(text) {
  const { node } = WORDS;
  return text.replaceAll("module", node).replaceAll("Module", node[0].toUpperCase() + node.slice(1));
}

// A part of a whole; 0 of an empty whole.
function shareOf(part, whole) {
  return whole ? part / whole : 0;
}
