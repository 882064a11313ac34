// Numbers for people, as in the terminal (tracekit/views/formatting.py), which rounds ties to the even digit.

const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]];
const SIZES = [[1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const SHOWN_AS_ZERO = 0.0005;

function grouped(number) {
  return number.toLocaleString("en", { maximumFractionDigits: 1 });
}

// A number in the largest unit that fits, three digits.
function inUnits(number, units) {
  if (number === null) return "";
  if (number < 0) return `-${inUnits(-number, units)}`;
  const [size, unit] = units.find(([least]) => number >= 0.9995 * least) ?? units.at(-1);
  return `${figure(number / size)} ${unit}`;
}

// Nanoseconds: 1.23 ms.
function duration(ns) {
  return inUnits(ns, TIMES);
}

// Bytes: 1.23 MB.
function sizeText(bytes) {
  return inUnits(bytes, SIZES);
}

// A share as a percentage: 12.3 %. Only exactly nothing is 0.0 %, only exactly all is 100.0 %.
function percent(share) {
  if (share === null || Number.isNaN(share)) return "";
  if (share && Math.abs(share) < SHOWN_AS_ZERO) return "<0.1 %";
  if (share >= 1 - SHOWN_AS_ZERO && share < 1) return ">99.9 %";
  return `${(share * 100).toFixed(1)} %`;
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
  return Math.abs(number) >= 999.5 ? grouped(Math.round(number)) : String(Number(number.toPrecision(3)));
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
