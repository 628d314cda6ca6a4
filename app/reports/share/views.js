"use strict";
// The views of the report: the code of a stage, alone or compared with another, Python code, nodes, tables of results.

const FOLDED_LINES = 8;
const CONTEXT_LINES = 3;
// A line that comes from more nodes than this, such as a function's first line, marks no others.
const MAX_LINKED = 40;

/** The nodes that are linked now: those of the line or row under the mouse or the cursor, else those that are pinned. */
class Link {
  constructor(changed) {
    this._changed = changed;
    this._nodes = new Set();
    this.pinned = new Set();
  }

  get nodes() {
    return this._nodes.size ? this._nodes : this.pinned;
  }

  /** Links the nodes of the line or row under the mouse or the cursor. */
  point(nodes) {
    if (this._nodes.size === nodes.length && nodes.every((node) => this._nodes.has(node))) return;
    this._nodes = new Set(nodes);
    this._changed();
  }

  /** Keeps nodes linked (pins them) after the mouse has left them; again, or without nodes, to end that. */
  pin(nodes) {
    const same = this.pinned.size === nodes.length && nodes.every((node) => this.pinned.has(node));
    this.pinned = new Set(same ? [] : nodes);
    this._nodes = new Set();
    this._changed();
  }
}

/** For each set of nodes, whether it has one of `nodes`. A derived node has the index -1 - node. */
function setsWith(sets, nodes) {
  return sets.map((set) => nodes.size > 0 && set.some((node) => nodes.has(node < 0 ? -1 - node : node)));
}

/**
 * Code in a box: a text, or the differences of two texts, with a ruler of its marked lines.
 *
 * `_plan` has the rows of a comparison, and is null for a text alone. A row has a `kind` ("same", "removed", "added" or
 * "fold") and the numbers of its line in the other text (`a`) and in this text (`b`), as far as it has one. `partner` is
 * the line of the other text that a changed line replaces, or -1. A fold has the `count` of its lines, and as `origin`
 * the first equal line, by which `_unfolded` knows it.
 */
class CodeView {
  constructor(box, contents, link, on = {}) {
    this._contents = contents;
    this._link = link;
    this.pattern = null;
    this.text = null;
    this._other = null;
    this._ruler = make("canvas", "ruler");
    const body = make("div", "code-body rows");
    body.tabIndex = 0;
    box.removeAttribute("tabindex");
    box.classList.remove("rows");
    box.replaceChildren(body, this._ruler);
    this.rows = new Rows(body, (number) => this._draw(number), {
      hover: (row) => this._link.point(row < 0 ? [] : this._linked(row)),
      cursor: (row) => {
        on.cursor?.(row);
        this._link.point(this._linked(row));
      },
      pick: (row) => this._pick(row),
    });
    this._ruler.addEventListener("click", (event) => {
      this.rows.moveTo(Math.floor((event.offsetY / this._ruler.clientHeight) * this.rows.count));
    });
  }

  focus() {
    this.rows.box.focus({ preventScroll: true });
  }

  /** Shows a text of a graph; `sets` are the graph's sets of nodes. */
  show(text, sets) {
    this._other = null;
    this.text = text;
    this._sets = sets;
    this._plan = null;
    this._linkSets();
    this.rows.show(text.ids.length, text.width);
    this._drawRuler();
  }

  /** Shows how `text` differs from the text `other`. */
  showDifferences(other, text, sets, ignoresNumbering) {
    const lines = ({ ids }) => (ignoresNumbering ? this._contents.withoutNumbering(ids) : ids);
    this._other = other;
    this.text = text;
    this._sets = sets;
    this.hunks = compare(lines(other), lines(text));
    this._unfolded = new Set();
    this._linkSets();
    this._arrange();
    this.rows.cursor = Math.max(0, this._plan.findIndex((row) => row.kind === "removed" || row.kind === "added"));
    this.rows.show(this._plan.length, Math.max(text.width, other.width));
    this.rows.moveTo(this.rows.cursor);
    this._drawRuler();
  }

  get showsDifferences() {
    return this._other !== null;
  }

  /** Makes the rows of a comparison. A long run of equal lines is a row that unfolds. */
  _arrange() {
    this._plan = [];
    const same = (i, j, count) => {
      for (let k = 0; k < count; k++) this._plan.push({ kind: "same", a: i + k, b: j + k });
    };
    let i = 0;
    let j = 0;
    for (const [a, removed, b, added] of [...this.hunks, [this._other.ids.length, 0, this.text.ids.length, 0]]) {
      const head = j ? CONTEXT_LINES : 0;
      const tail = removed || added ? CONTEXT_LINES : 0;
      const hidden = b - j - head - tail;
      if (hidden < FOLDED_LINES || this._unfolded.has(j)) same(i, j, b - j);
      else {
        same(i, j, head);
        this._plan.push({ kind: "fold", a: i + head, b: j + head, count: hidden, origin: j });
        same(a - tail, b - tail, tail);
      }
      for (let k = 0; k < removed; k++) {
        this._plan.push({ kind: "removed", a: a + k, partner: removed === added ? b + k : -1 });
      }
      for (let k = 0; k < added; k++) {
        this._plan.push({ kind: "added", b: b + k, partner: removed === added ? a + k : -1 });
      }
      [i, j] = [a + removed, b + added];
    }
  }

  /** The line of the text at a row; for a removed line, the next line of the text. */
  lineOf(row) {
    if (!this._plan) return row;
    return this._plan.slice(row).find((part) => part.b !== undefined)?.b ?? this.text.ids.length - 1;
  }

  rowOf(line) {
    if (!this._plan) return line;
    const row = this._plan.findIndex((part) => part.b === line || (part.kind === "fold" && line < part.b + part.count));
    return Math.max(0, row);
  }

  /** The rows of the lines that match. */
  matchingRows(matches) {
    const rows = [];
    for (let row = 0; row < this.rows.count; row++) {
      const id = this._idOf(row);
      if (id >= 0 && matches[id]) rows.push(row);
    }
    return rows;
  }

  /** The first row of each change. */
  get changedRows() {
    const isChange = (part) => part && (part.kind === "removed" || part.kind === "added");
    return (this._plan ?? []).flatMap((part, k, all) => (isChange(part) && !isChange(all[k - 1]) ? [k] : []));
  }

  /** The number of the line at a row in the contents, -1 for a fold. */
  _idOf(row) {
    const part = this._plan?.[row];
    if (!this._plan) return this.text.ids[row];
    if (part.kind === "fold") return -1;
    return part.kind === "removed" ? this._other.ids[part.a] : this.text.ids[part.b];
  }

  /** The nodes that a row comes from, without those of a whole function. */
  _linked(row) {
    const nodes = this.nodesAt(row);
    return nodes.length > MAX_LINKED ? [] : nodes;
  }

  nodesAt(row) {
    return [...new Set((this._sets[this._setOf(row)] ?? []).map((node) => (node < 0 ? -1 - node : node)))];
  }

  /** The number of the set of nodes that a row comes from; -1 without a row, 0 (the empty set) for a fold. */
  _setOf(row) {
    if (!this.text || row < 0 || row >= this.rows.count) return -1;
    const part = this._plan?.[row];
    if (!this._plan) return this.text.sets[row] ?? 0;
    if (part.kind === "fold") return 0;
    return (part.kind === "removed" ? this._other.sets[part.a] : this.text.sets[part.b]) ?? 0;
  }

  _pick(row) {
    const part = this._plan?.[row];
    if (part?.kind === "fold") {
      this._unfolded.add(part.origin);
      this._arrange();
      this.rows.show(this._plan.length, Math.max(this.text.width, this._other.width));
      this.update();
    } else this._link.pin(this._linked(row));
  }

  /** Draws again after the linked nodes or the pattern have changed. */
  update() {
    if (!this.text) return;
    this._linkSets();
    this.rows.refresh();
    this._drawRuler();
  }

  _linkSets() {
    this._linkedSets = setsWith(this._sets, this._link.nodes);
  }

  /** The first row whose line comes from the fewest nodes, one of which is linked; -1 without one. */
  get linkedRow() {
    let best = -1;
    for (let row = 0; row < this.rows.count; row++) {
      const set = this._setOf(row);
      if (this._linkedSets[set] && (best < 0 || this._sets[set].length < this._sets[this._setOf(best)].length)) best = row;
    }
    return best;
  }

  get linkedRows() {
    const rows = [];
    for (let row = 0; row < this.rows.count; row++) if (this._linkedSets[this._setOf(row)]) rows.push(row);
    return rows;
  }

  /** Marks changes, matches and linked lines in the ruler, at the heights of their rows in the whole text. */
  _drawRuler() {
    const { clientWidth: width, clientHeight: height } = this._ruler;
    [this._ruler.width, this._ruler.height] = [width, height];
    const context = this._ruler.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const mark = (row, colour) => {
      context.fillStyle = style.getPropertyValue(colour);
      context.fillRect(0, Math.floor((row / this.rows.count) * height), width, 2);
    };
    for (let row = 0; this._plan && row < this._plan.length; row++) {
      const { kind } = this._plan[row];
      if (kind === "added" || kind === "removed") mark(row, `--${kind}`);
    }
    if (this.matches) for (const row of this.matchingRows(this.matches)) mark(row, "--match-on");
    if (this._link.nodes.size) for (const row of this.linkedRows) mark(row, "--accent");
  }

  _draw(number) {
    const part = this._plan?.[number] ?? { kind: "same", b: number };
    if (part.kind === "fold") {
      return make("div", "row fold", make("span", "number"), `${part.count} equal lines · click or press enter`);
    }
    const isOld = part.kind === "removed";
    const id = this._idOf(number);
    const line = this._contents.lines[id];
    const marks = part.partner >= 0 ? changedRange(line, this._partner(part), `${part.kind}-word`) : [];
    const sign = { removed: "- ", added: "+ " }[part.kind] ?? (this._plan ? "  " : "");
    const row = make("div", `row ${part.kind}`);
    if (this._linkedSets[this._setOf(number)]) row.classList.add("linked");
    const found = matchRanges(line, this.pattern);
    row.append(
      make("span", "number", String((isOld ? part.a : part.b) + 1)),
      sign,
      drawText(line, this._contents.colours(id), found.length ? found : marks),
    );
    return row;
  }

  /** The text of the line that a changed line replaces, or that replaces it. */
  _partner(part) {
    const [text, line] = part.kind === "removed" ? [this.text, part.partner] : [this._other, part.partner];
    return this._contents.lines[text.ids[line]];
  }
}

/** The range in which a line differs from another one, if they have more than that in common. */
function changedRange(line, other, name) {
  let start = 0;
  while (start < line.length && line[start] === other[start]) start++;
  let end = 0;
  while (end < Math.min(line.length, other.length) - start && line.at(-1 - end) === other.at(-1 - end)) end++;
  return start + end > 4 && line.length - end > start ? [[start, line.length - end, name]] : [];
}

/** The table of nodes, which sorts by a column and filters by words. */
class NodeTable {
  constructor(heading, box, filter, count, link, pick) {
    [this._heading, this._filter, this._count, this._link] = [heading, filter, count, link];
    this.rows = new Rows(box, (number) => this._draw(number), {
      hover: (row) => link.point(row < 0 ? [] : [this._order[row]]),
      cursor: (row) => link.point(this._order.length ? [this._order[row]] : []),
      pick: (row) => pick(this._order[row]),
    });
    filter.addEventListener("input", () => this._arrange());
  }

  show(nodes) {
    const names = { name: "node", op: "op", result: "result", lowering: "lowering", ms: "ms", error: "error / tolerance" };
    this._nodes = nodes;
    this._columns = [...Object.keys(names).filter((key) => nodes[key]), "function", "location"];
    this._sorted = ["", 1];
    this._heading.replaceChildren(
      ...this._columns.map((key) => {
        const button = make("button", `cell-${key}`, names[key] ?? key);
        button.addEventListener("click", () => {
          this._sorted = [key, this._sorted[0] === key ? -this._sorted[1] : 1];
          this._arrange();
        });
        return button;
      }),
    );
    this._arrange();
  }

  _arrange() {
    const words = this._filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [key, sign] = this._sorted;
    const all = [...this._nodes.name.keys()];
    const textOf = (node) => this._columns.map((column) => this._nodes[column][node]).join(" ").toLowerCase();
    this._order = words.length ? all.filter((node) => words.every((word) => textOf(node).includes(word))) : all;
    if (key) {
      const values = this._nodes[key];
      const compareValues = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (b ?? -1) - (a ?? -1));
      this._order.sort((a, b) => sign * compareValues(values[a], values[b]) || a - b);
    }
    this._count.value = `${this._order.length} of ${all.length} nodes`;
    this.rows.show(this._order.length);
  }

  update() {
    if (this._order) this.rows.refresh();
  }

  _draw(number) {
    const node = this._order[number];
    const row = make("div", "row node");
    if (this._link.nodes.has(node)) row.classList.add("linked");
    if (this._nodes.lowering[node] === "eager") row.classList.add("eager");
    for (const key of this._columns) {
      const value = this._nodes[key][node] ?? "";
      const cell = make("span", `cell-${key}`, key === "error" && value >= 1e9 ? "nan/inf" : String(value));
      cell.title = key === "lowering" ? this._nodes.reason[node] : String(value);
      row.append(cell);
    }
    return row;
  }
}

/** The tables of results as elements. */
function drawTables(tables) {
  return tables.map((table) => {
    const section = make("section", table.bad ? "bad" : "", make("h2", "", table.title));
    if (table.note) section.append(make("p", "", table.note));
    if (table.text !== undefined) {
      const save = make("button", "", `save ${table.file}`);
      save.addEventListener("click", () => saveFile(table.file, [table.text]));
      section.append(save, make("pre", "", table.text));
      return section;
    }
    const cell = (tag, text, column) => make(tag, table.right.includes(table.columns[column]) ? "right" : "", text);
    const element = make("table");
    if (table.columns.some(Boolean)) {
      element.append(make("thead", "", make("tr", "", ...table.columns.map((name, k) => cell("th", name, k)))));
    }
    const rows = table.rows.map((row, number) =>
      make("tr", table.badRows?.includes(number) ? "bad" : "", ...row.map((text, k) => cell("td", text, k))),
    );
    element.append(make("tbody", "", ...rows));
    section.append(element);
    return section;
  });
}
