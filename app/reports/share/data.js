"use strict";
// The contents of the report: texts whose lines are stored once, provenance, search, and comparison of two texts.

/** Reads the compressed contents of an element. */
async function readContents(element) {
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Expands runs of (number, length): of consecutive numbers with a `step` of 1, of equal numbers with 0. */
function expandRuns(runs, step) {
  let total = 0;
  for (let i = 1; i < runs.length; i += 2) total += runs[i];
  const numbers = new Uint32Array(total);
  for (let i = 0, at = 0; i < runs.length; i += 2) {
    for (let k = 0; k < runs[i + 1]; k++) numbers[at++] = runs[i] + k * step;
  }
  return numbers;
}

/** The contents that `share/contents.py` collects. A line has a number (id), which the texts with that line share. */
class Contents {
  constructor(data) {
    const { lines, colours, lineColours, texts, ...rest } = data;
    Object.assign(this, rest);
    this.lines = lines.split("\n");
    this._colours = colours;
    this._lineColours = lineColours;
    this._colourRuns = new Map();
    this._stored = texts;
    this._texts = new Map();
    this._withoutNumbering = null;
  }

  /** A text: the number of each line (`ids`), and the set of nodes that it comes from (`sets`). */
  text(number) {
    if (!this._texts.has(number)) {
      const ids = expandRuns(this._stored[number].lines, 1);
      const sets = expandRuns(this._stored[number].sets, 0);
      const width = ids.reduce((most, id) => Math.max(most, this.lines[id].length), 0);
      this._texts.set(number, { ids, sets, width });
    }
    return this._texts.get(number);
  }

  /** The colours of a line: pairs of a class and a length. */
  colours(id) {
    const code = this._colours[this._lineColours[id]];
    if (!this._colourRuns.has(code)) {
      const runs = [...code.matchAll(/([a-z_])(\d+)/g)];
      this._colourRuns.set(code, runs.map(([, letter, length]) => [this.syntax[letter], Number(length)]));
    }
    return this._colourRuns.get(code);
  }

  /** The numbers of lines with which `ids` are compared: equal for lines that differ only in names of values. */
  withoutNumbering(ids) {
    if (this._withoutNumbering === null) {
      const known = new Map();
      this._withoutNumbering = Uint32Array.from(this.lines, (line, id) => {
        const key = line.replace(/%[\w$.]+(#\d+)?|\^bb\d+|[#!]\w+\d+\b|\.L\w+/g, "%");
        if (!known.has(key)) known.set(key, id);
        return known.get(key);
      });
    }
    return ids.map((id) => this._withoutNumbering[id]);
  }

  /** For each line of all texts, whether it matches. Throws a SyntaxError for an invalid regular expression. */
  search(pattern, isRegex, matchCase) {
    const source = isRegex ? pattern : pattern.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    this.pattern = new RegExp(source, matchCase ? "g" : "gi");
    return Uint8Array.from(this.lines, (line) => {
      this.pattern.lastIndex = 0;
      return this.pattern.test(line) ? 1 : 0;
    });
  }
}

// Gaps between equal lines with a larger product of lengths than this are shown as replaced.
const MAX_TABLE = 4_000_000;

/** The differences of two lists of numbers: hunks [start in a, count in a, start in b, count in b], in order. */
function compare(a, b) {
  const hunks = [];
  // Adds a hunk of n lines from line i of a, and m lines from line j of b, to the last hunk if they touch.
  const add = (i, n, j, m) => {
    const last = hunks[hunks.length - 1];
    if (last && last[0] + last[1] === i && last[2] + last[3] === j) {
      last[1] += n;
      last[3] += m;
    } else if (n || m) hunks.push([i, n, j, m]);
  };
  // The parts that are still to be compared, the next one last.
  const parts = [[0, a.length, 0, b.length]];
  while (parts.length) {
    let [i, iEnd, j, jEnd] = parts.pop();
    while (i < iEnd && j < jEnd && a[i] === b[j]) i++, j++;
    while (i < iEnd && j < jEnd && a[iEnd - 1] === b[jEnd - 1]) iEnd--, jEnd--;
    if (i === iEnd || j === jEnd) {
      add(i, iEnd - i, j, jEnd - j);
      continue;
    }
    const anchors = commonUniqueLines(a, i, iEnd, b, j, jEnd);
    if (anchors.length) {
      const ends = [...anchors.slice(1), [iEnd, jEnd]];
      const between = anchors.map(([p, q], k) => [p, ends[k][0], q, ends[k][1]]);
      parts.push(...[[i, anchors[0][0], j, anchors[0][1]], ...between].reverse());
    } else if ((iEnd - i) * (jEnd - j) <= MAX_TABLE) {
      compareByTable(a, i, iEnd, b, j, jEnd, add);
    } else add(i, iEnd - i, j, jEnd - j);
  }
  return hunks;
}

/** Pairs of positions of lines that occur once in each part, in an order that both parts have. */
function commonUniqueLines(a, i, iEnd, b, j, jEnd) {
  const positions = new Map();
  for (let p = i; p < iEnd; p++) positions.set(a[p], positions.has(a[p]) ? null : [p, -1]);
  for (let q = j; q < jEnd; q++) {
    const pair = positions.get(b[q]);
    if (pair) pair[1] = pair[1] === -1 ? q : -2;
  }
  // The longest increasing sequence of positions in b: `tails[k]` ends the best sequence of length k + 1.
  const tails = [];
  const previous = new Map();
  for (const pair of positions.values()) {
    if (!pair || pair[1] < 0) continue;
    let low = 0;
    let high = tails.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tails[middle][1] < pair[1]) low = middle + 1;
      else high = middle;
    }
    previous.set(pair, tails[low - 1]);
    tails[low] = pair;
  }
  const sequence = [];
  for (let pair = tails[tails.length - 1]; pair; pair = previous.get(pair)) sequence.push(pair);
  return sequence.reverse();
}

/** Compares short parts by their longest common subsequence, and adds the differences by `add`. */
function compareByTable(a, i, iEnd, b, j, jEnd, add) {
  const width = jEnd - j + 1;
  // The length of the longest common subsequence of the lines from p of a and from q of b, in row p and column q.
  const lengths = new Uint16Array((iEnd - i + 1) * width);
  for (let p = iEnd - i - 1; p >= 0; p--) {
    for (let q = width - 2; q >= 0; q--) {
      const at = p * width + q;
      const skip = Math.max(lengths[at + width], lengths[at + 1]);
      lengths[at] = a[i + p] === b[j + q] ? lengths[at + width + 1] + 1 : skip;
    }
  }
  let p = 0;
  let q = 0;
  while (i + p < iEnd || j + q < jEnd) {
    const at = p * width + q;
    if (i + p < iEnd && j + q < jEnd && a[i + p] === b[j + q]) p++, q++;
    else if (j + q === jEnd || (i + p < iEnd && lengths[at + width] >= lengths[at + 1])) add(i + p++, 1, j + q, 0);
    else add(i + p, 0, j + q++, 1);
  }
}
