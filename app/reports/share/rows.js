"use strict";
// A list of rows of which only those near the visible part are in the document, and the drawing of lines of code.

// In pixels, as in page.css.
const ROW_HEIGHT = 18;
// The number of rows that are drawn above and below the visible ones.
const EXTRA_ROWS = 20;
// Browsers limit the height of an element, in pixels. A longer list scrolls by more than a row for each row's height.
const MAX_HEIGHT = 12_000_000;

/** Creates an element with a class, and children that are elements or texts. */
function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Saves texts as a file of the reader. */
function saveFile(name, texts) {
  const address = URL.createObjectURL(new Blob(texts, { type: "text/plain" }));
  Object.assign(make("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * Rows in the scrollable element `box`, with a cursor. `draw(number)` returns the element of a row. `on` has the
 * functions that are called: `cursor(row)` when the cursor moves, `hover(row)` under the mouse, `pick(row)` for a click
 * or the enter key.
 */
class Rows {
  constructor(box, draw, on = {}) {
    this.box = box;
    this.on = on;
    this.count = 0;
    this.cursor = 0;
    this._draw = draw;
    this._space = make("div", "space-of-rows");
    this._drawn = make("div", "drawn-rows");
    this._space.append(this._drawn);
    box.replaceChildren(this._space);
    box.addEventListener("scroll", () => this.refresh());
    box.addEventListener("keydown", (event) => this._press(event));
    box.addEventListener("mousemove", (event) => this.on.hover?.(this._rowAt(event)));
    box.addEventListener("mouseleave", () => this.on.hover?.(-1));
    box.addEventListener("click", (event) => {
      const row = this._rowAt(event);
      if (row < 0 || String(getSelection())) return;
      this.moveTo(row);
      this.on.pick?.(row);
    });
    new ResizeObserver(() => this.refresh()).observe(box);
  }

  /** Shows `count` rows of at most `width` characters. */
  show(count, width = 0) {
    this.count = count;
    this.cursor = Math.max(0, Math.min(this.cursor, count - 1));
    this._scale = Math.max(1, (count * ROW_HEIGHT) / MAX_HEIGHT);
    this._space.style.height = `${Math.ceil((count * ROW_HEIGHT) / this._scale)}px`;
    this._space.style.minWidth = width ? `${width + 12}ch` : "";
    this.refresh();
  }

  /** Draws the visible rows again. */
  refresh() {
    const first = this.firstVisible;
    const from = Math.max(0, first - EXTRA_ROWS);
    const to = Math.min(this.count, first + this.visibleCount + EXTRA_ROWS);
    const rows = [];
    for (let number = from; number < to; number++) {
      const row = this._draw(number);
      row.classList.toggle("at-cursor", number === this.cursor);
      row.dataset.row = number;
      rows.push(row);
    }
    const isExact = this._scale === 1;
    const top = isExact ? from * ROW_HEIGHT : this.box.scrollTop - (first - from) * ROW_HEIGHT;
    this._drawn.style.transform = `translateY(${top}px)`;
    this._drawn.replaceChildren(...rows);
  }

  get firstVisible() {
    return Math.floor((this.box.scrollTop * this._scale) / ROW_HEIGHT);
  }

  get visibleCount() {
    return Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT));
  }

  /** Puts the cursor on a row, and scrolls to it if it is not visible, or to the middle if it is far away. */
  moveTo(row) {
    if (!this.count) return;
    this.cursor = Math.max(0, Math.min(row, this.count - 1));
    const first = this.firstVisible;
    const visible = this.visibleCount;
    const isNear = this.cursor >= first - 2 && this.cursor <= first + visible + 1;
    let target = first;
    if (!isNear) target = this.cursor - (visible >> 1);
    else if (this.cursor < first) target = this.cursor;
    else if (this.cursor >= first + visible) target = this.cursor - visible + 1;
    if (target !== first) this.box.scrollTop = (Math.max(0, target) * ROW_HEIGHT) / this._scale;
    this.refresh();
    this.on.cursor?.(this.cursor);
  }

  _rowAt(event) {
    const row = event.target.closest("[data-row]");
    return row && this.box.contains(row) ? Number(row.dataset.row) : -1;
  }

  _press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = this.visibleCount - 1;
    const moves = {
      ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, " ": page, PageUp: -page,
      Home: -this.count, End: this.count, g: -this.count, G: this.count,
    };
    if (event.key in moves) this.moveTo(this.cursor + moves[event.key]);
    else if (event.key === "Enter") this.on.pick?.(this.cursor);
    else return;
    event.preventDefault();
  }
}

/**
 * Draws the text of a line: `colours` are pairs of a class and a length, `marks` are ranges [start, end, class] that
 * are marked in addition, in order.
 */
function drawText(text, colours, marks = []) {
  const parts = make("span", "text");
  const cuts = marks.flatMap(([start, end]) => [start, end]);
  let at = 0;
  for (const [name, length] of colours.length ? colours : [["", text.length]]) {
    const end = at + length;
    while (at < end) {
      const next = Math.min(end, ...cuts.filter((cut) => cut > at));
      const mark = marks.find(([start, stop]) => start <= at && at < stop);
      const classes = [name && `syntax-${name}`, mark?.[2]].filter(Boolean).join(" ");
      const piece = text.slice(at, next);
      parts.append(classes ? make("span", classes, piece) : piece);
      at = next;
    }
  }
  return parts;
}

/** The ranges of a line that match a pattern with the flag g. */
function matchRanges(line, pattern) {
  const ranges = [];
  for (const match of pattern ? line.matchAll(pattern) : []) {
    if (match[0]) ranges.push([match.index, match.index + match[0].length, "match"]);
    if (ranges.length > 50) break;
  }
  return ranges;
}
