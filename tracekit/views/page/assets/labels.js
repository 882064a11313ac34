// Text in boxes: whole where it fits, else shortened to a readable rest and an ellipsis, else none. Nothing is cut off.

const FEWEST_LETTERS = 4;
const ELLIPSIS = "\u2026";

const measuring = document.createElement("canvas").getContext("2d");
const textWidths = new Map();

// The width of a text in a font, in pixels.
function textWidth(text, font) {
  const key = `${font}\n${text}`;
  if (!textWidths.has(key)) {
    measuring.font = font;
    textWidths.set(key, measuring.measureText(text).width);
  }
  return textWidths.get(key);
}

// The text that is shown in a room of so many pixels, or "".
function shortened(text, room, font) {
  const width = textWidth(text, font);
  if (width <= room) return text;
  const letters = [...text];
  let kept = Math.min(Math.ceil((letters.length * room) / width) + 1, letters.length - 1);
  for (; kept >= FEWEST_LETTERS; kept -= 1) {
    const begin = letters.slice(0, kept).join("").replace(/[\s._]+$/, "");
    if (begin.length >= FEWEST_LETTERS && textWidth(begin + ELLIPSIS, font) <= room) return begin + ELLIPSIS;
  }
  return "";
}

// The font of an element, as a canvas understands it.
function fontOf(element) {
  const { fontStyle, fontWeight, fontSize, fontFamily } = getComputedStyle(element);
  return `${fontStyle} ${fontWeight} ${fontSize} ${fontFamily}`;
}
