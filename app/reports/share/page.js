"use strict";
// The page: reads the contents, shows a graph and a stage, and reacts to keys, buttons and the search.

const KEYS = [
  ["1 2 3", "stages, graph, results"],
  ["[ ]", "previous and next stage"],
  ["j k ↑ ↓ g G", "move the cursor; page up and down, home and end too"],
  ["enter, click", "pin the nodes of a line; again to unpin them"],
  ["{ }", "previous and next line of the linked nodes"],
  ["/", "search all stages; enter: next match"],
  ["n N", "next and previous match, also in other stages; in a comparison without a search: change"],
  ["d", "compare with the stage before, or end the comparison"],
  ["p", "show or hide the Python code"],
  ["t", "light or dark"],
  ["tab", "next part of the page"],
  ["escape", "end the search, the link and the comparison, one after another"],
];
// The maximum number of lines of a stage that are printed.
const PRINTED_LINES = 3000;
const get = (id) => document.getElementById(id);

class Page {
  constructor(contents) {
    this.contents = contents;
    this.link = new Link(() => this.linkChanged());
    this.code = new CodeView(get("code"), contents, this.link);
    this.python = new CodeView(get("python"), contents, this.link);
    this.nodes = new NodeTable(get("node-heading"), get("nodes"), get("filter"), get("node-count"), this.link, (node) => {
      this.link.pinned = new Set();
      this.link.pin([node]);
      this.show("stages");
      this.goToLinked();
    });
    this.stageList = new Rows(get("stage-list"), (number) => this.drawStage(number), {
      cursor: (row) => row !== this.stage && this.showStage(row),
    });
    // For each line of the contents, whether it matches; null without a search.
    this.matches = null;
    // The numbers of lines that come from the pinned nodes `countedFor`, by text.
    this.linkCounts = new Map();
    this.countedFor = this.link.pinned;
    this.stage = -1;
    this.file = -1;
  }

  // ---- graphs and stages ---------------------------------------------------------------------------------------

  start() {
    const { source, arguments: scriptArguments, graphs } = this.contents;
    get("program").textContent = [source, ...scriptArguments].join(" ");
    get("graph").append(...graphs.map((graph, k) => new Option(`graph ${graph.number}: ${graph.name}`, k)));
    get("graph").hidden = graphs.length < 2;
    const address = new URLSearchParams(location.hash.slice(1));
    this.showGraph(Math.min(Number(address.get("graph") ?? 0), graphs.length - 1) || 0);
    const stage = address.has("stage") ? Number(address.get("stage")) : this.firstStage();
    this.showStage(Math.max(0, Math.min(stage, this.graph.stages.length - 1)) || 0);
    if (address.has("line")) this.code.rows.moveTo(Number(address.get("line")) - 1);
    this.show(address.get("view") ?? (this.graph.stages.length ? "stages" : "results"));
  }

  /** The stage that is shown first: the failed one, else the first one in MLIR, which is the top-level IR. */
  firstStage() {
    const failed = this.graph.stages.findIndex((stage) => stage.state === "failed");
    return failed >= 0 ? failed : this.graph.stages.findIndex((stage) => stage.language === "mlir");
  }

  showGraph(number) {
    const graph = (this.graph = this.contents.graphs[number]);
    get("graph").value = number;
    this.graphNumber = number;
    get("verdict").textContent = graph.verdict || (graph.wrong ? "failed" : "not run");
    get("verdict").className = graph.wrong ? "bad" : graph.verdict === "ok" ? "ok" : "";
    [this.stage, this.file] = [-1, -1];
    this.link.pinned = new Set();
    this.longest = Math.max(...graph.stages.map((stage) => stage.ms), 1e-9);
    get("other").replaceChildren(
      new Option("none", ""),
      ...graph.stages.map((stage, k) => new Option(`${k} ${stage.name}`, k)),
    );
    const shortName = (path) => path.split("/").slice(-2).join("/");
    get("file").replaceChildren(...graph.files.map((file, k) => new Option(shortName(file.path), k)));
    this.stageList.show(graph.stages.length);
    this.nodes.show(graph.nodes);
    get("results").replaceChildren(...drawTables(graph.tables));
    this.showPython(graph.files.length > 0 && innerWidth > 1100);
    if (graph.files.length) this.showFile(0);
    get("python-button").disabled = !graph.files.length;
  }

  /** Shows a stage, alone or compared with the stage `other`. */
  showStage(number, other = null) {
    const stage = this.graph.stages[number];
    if (!stage) return;
    this.stage = number;
    this.other = other;
    this.stageList.cursor = number;
    this.stageList.moveTo(number);
    const text = this.contents.text(stage.text);
    get("stage-title").textContent = `${number} ${stage.spelling}`;
    get("stage-title").title = stage.spelling;
    const facts = [stage.phase, stage.language, `${text.ids.length} lines`, stage.ops && `${stage.ops} ops`];
    if (stage.added || stage.removed) facts.push(`+${stage.added} −${stage.removed} ops`);
    if (stage.state !== "done") facts.push(stage.state);
    else if (!stage.changed) facts.push("changed nothing");
    get("other").value = other ?? "";
    const line = this.code.text && !this.code.showsDifferences ? this.code.rows.cursor : 0;
    if (other === null) {
      this.code.rows.cursor = 0;
      this.code.show(text, this.graph.sets);
      if (this.link.pinned.size) this.goToLinked();
      else this.code.rows.moveTo(this.cursorLineIn(text, line));
    } else {
      const before = this.contents.text(this.graph.stages[other].text);
      this.code.showDifferences(before, text, this.graph.sets, get("numbering").checked);
      const { length } = this.code.changedRows;
      facts.push(`${length} change${length === 1 ? "" : "s"} since ${this.graph.stages[other].name}`);
    }
    get("stage-facts").textContent = facts.filter(Boolean).join(" · ");
    this.countMatches();
    this.remember();
  }

  /** The line of the cursor when `text` is shown: `line`, where it was, if that text was shown before; else 0. */
  cursorLineIn(text, line) {
    const isSame = this.shownText === text;
    this.shownText = text;
    return isSame ? line : 0;
  }

  drawStage(number) {
    const stage = this.graph.stages[number];
    const row = make("div", "row stage", make("span", "number", String(number)), make("span", "name", stage.name));
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", number === this.stage);
    row.title = `${stage.spelling}\n${stage.phase}, ${stage.ms} ms`;
    row.classList.toggle("same", !stage.changed && stage.state === "done");
    row.classList.toggle("bad", stage.state === "failed");
    row.classList.toggle("shown", number === this.stage);
    const count = this.matches ? this.stageMatches(number) : 0;
    const linked = !this.matches && this.link.pinned.size ? this.linkedLines(number) : 0;
    if (count || linked) row.append(make("span", count ? "match count" : "linked count", String(count || linked)));
    else if (this.graph.stages[number - 1]?.phase !== stage.phase) row.append(make("span", "phase", stage.phase));
    const bar = make("span", "time-bar");
    bar.style.width = `${Math.round((stage.ms / this.longest) * 100)}%`;
    row.append(bar);
    return row;
  }

  showFile(number) {
    this.file = number;
    get("file").value = number;
    get("file").title = this.graph.files[number].path;
    const text = this.contents.text(this.graph.files[number].text);
    this.python.rows.cursor = Math.max(0, text.sets.findIndex(Boolean));
    this.python.show(text, this.graph.sets);
    this.python.rows.box.scrollTop = (this.python.rows.cursor - 10) * ROW_HEIGHT;
  }

  showPython(isShown) {
    get("python-side").hidden = !isShown;
    if (isShown) this.linkChanged();
  }

  // ---- links ---------------------------------------------------------------------------------------------------

  /** Marks the lines of the linked nodes everywhere, shows their Python line, and names them below. */
  linkChanged() {
    if (!this.graph) return;
    const { nodes } = this.graph;
    const linked = [...this.link.nodes];
    const first = linked.find((node) => nodes.file[node] >= 0);
    if (first !== undefined && !get("python-side").hidden && !get("python").contains(document.activeElement)) {
      if (nodes.file[first] !== this.file) this.showFile(nodes.file[first]);
      this.python.rows.cursor = nodes.line[first];
      const at = this.python.rows.firstVisible;
      const visible = this.python.rows.visibleCount;
      if (nodes.line[first] < at || nodes.line[first] >= at + visible) {
        this.python.rows.box.scrollTop = (nodes.line[first] - (visible >> 1)) * ROW_HEIGHT;
      }
    }
    for (const view of [this.code, this.python, this.nodes]) view.update();
    if (this.countedFor !== this.link.pinned) {
      this.countedFor = this.link.pinned;
      this.linkCounts = new Map();
      this.stageList.refresh();
    }
    const locations = [...new Set(linked.map((node) => nodes.location[node]))].filter(Boolean);
    const names = linked.slice(0, 3).map((node) => `${nodes.name[node]} ${nodes.op[node]}`);
    const parts = [names.join(", "), locations.slice(0, 2).join(", ")].filter(Boolean);
    if (linked.length > 3) parts[0] += ` and ${linked.length - 3} more`;
    // The Python line is first where many nodes leave no room for it.
    if (linked.length > 1) parts.reverse();
    if (this.link.pinned.size) parts.push("pinned, escape ends");
    get("origin").textContent = linked.length ? parts.join(" · ") : "";
  }

  /** The number of lines of a stage that come from the pinned nodes. */
  linkedLines(number) {
    const { text } = this.graph.stages[number];
    if (!this.linkCounts.has(text)) {
      const isLinked = setsWith(this.graph.sets, this.link.pinned);
      this.linkCounts.set(text, this.contents.text(text).sets.reduce((sum, set) => sum + isLinked[set], 0));
    }
    return this.linkCounts.get(text);
  }

  goToLinked() {
    const row = this.code.linkedRow;
    if (row >= 0) this.code.rows.moveTo(row);
  }

  /** Goes to the next line of the pinned nodes, or to the previous one with a `step` of -1. */
  stepLinked(step) {
    if (!this.link.pinned.size) this.link.pin([...this.link.nodes]);
    this.link.point([]);
    this.stepTo(this.code.linkedRows, step);
  }

  /** Moves the cursor to the next of `rows`, or the previous one with a `step` of -1. Returns whether there is one. */
  stepTo(rows, step) {
    const at = this.code.rows.cursor;
    const next = step > 0 ? rows.find((row) => row > at) : rows.findLast((row) => row < at);
    if (next === undefined) return false;
    this.code.rows.moveTo(next);
    return true;
  }

  // ---- search --------------------------------------------------------------------------------------------------

  search() {
    const pattern = get("pattern").value;
    get("pattern").classList.remove("bad");
    this.code.pattern = this.python.pattern = this.matches = null;
    if (pattern) {
      try {
        this.matches = this.contents.search(pattern, get("regex").checked, get("case").checked);
        this.code.pattern = this.python.pattern = this.contents.pattern;
      } catch (error) {
        get("pattern").classList.add("bad");
        get("found").value = error.message;
      }
    }
    this.counts = new Map();
    this.code.matches = this.python.matches = this.matches;
    for (const view of [this.code, this.python]) view.update();
    if (!get("pattern").classList.contains("bad")) this.countMatches();
    this.stageList.refresh();
  }

  /** The number of lines of a stage that match. */
  stageMatches(number) {
    const { text } = this.graph.stages[number];
    if (!this.counts.has(text)) {
      this.counts.set(text, this.contents.text(text).ids.reduce((sum, id) => sum + this.matches[id], 0));
    }
    return this.counts.get(text);
  }

  countMatches() {
    if (!this.matches) {
      get("found").value = "";
      return;
    }
    const stages = [...this.graph.stages.keys()].filter((number) => this.stageMatches(number));
    get("found").value = `${this.stageMatches(this.stage)} here, ${stages.length} stages`;
  }

  /** Goes to the next match, in this stage or in the next one that has any; without a search, to the next change. */
  nextMatch(step) {
    if (!this.matches) {
      this.stepTo(this.code.changedRows, step);
      return;
    }
    if (this.stepTo(this.code.matchingRows(this.matches), step)) return;
    const { stages } = this.graph;
    for (let k = 1; k <= stages.length; k++) {
      const number = (this.stage + step * k + stages.length * k) % stages.length;
      if (!this.stageMatches(number)) continue;
      this.showStage(number);
      const rows = this.code.matchingRows(this.matches);
      this.code.rows.moveTo(step > 0 ? rows[0] : rows[rows.length - 1]);
      return;
    }
  }

  // ---- the page ------------------------------------------------------------------------------------------------

  show(view) {
    this.view = view;
    for (const main of document.querySelectorAll("main")) main.hidden = main.dataset.view !== view;
    for (const button of get("tabs").children) button.setAttribute("aria-pressed", button.dataset.view === view);
    const shown = { stages: this.code.rows, graph: this.nodes.rows }[view];
    if (view === "stages") this.stageList.moveTo(this.stage);
    shown?.refresh();
    (shown?.box ?? get("results")).focus({ preventScroll: true });
    this.linkChanged();
    this.remember();
  }

  /** Writes what is shown to the address, so that a reload or a copied address shows it again. */
  remember() {
    const shown = { view: this.view ?? "stages", graph: this.graphNumber, stage: this.stage };
    history.replaceState(null, "", `#${new URLSearchParams(shown)}`);
  }

  setTheme(name) {
    document.documentElement.dataset.theme = name;
    this.code.update();
  }

  saveText() {
    const stage = this.graph.stages[this.stage];
    const { ids } = this.contents.text(stage.text);
    const lines = Array.from(ids, (id) => `${this.contents.lines[id]}\n`);
    const suffix = { mlir: "mlir", llvm: "ll", asm: "s", ptx: "ptx" }[stage.language] ?? "txt";
    saveFile(`${this.stage}-${stage.name}.${suffix}`, lines);
  }

  compareWithBefore() {
    if (this.other !== null) this.showStage(this.stage);
    else if (this.stage > 0) this.showStage(this.stage, this.stage - 1);
  }

  escape() {
    if (get("pattern").value) {
      get("pattern").value = "";
      this.search();
      this.code.focus();
    } else if (this.link.pinned.size) this.link.pin([]);
    else if (this.other !== null) this.showStage(this.stage);
  }

  /** Fills the printed page: results, nodes, and the text of the stage. */
  preparePrint() {
    const { nodes, stages } = this.graph;
    const columns = ["node", "op", "result", "lowering", "Python line"];
    const keys = ["name", "op", "result", "lowering", "location"];
    const rows = nodes.name.map((_, k) => keys.map((key) => nodes[key][k]));
    const stage = stages[this.stage];
    const isText = (table) => table.text !== undefined;
    const tables = this.graph.tables.filter((table) => !isText(table));
    const parts = drawTables([...tables, { title: "Nodes", columns, right: [], rows }]);
    if (stage) {
      const { ids } = this.contents.text(stage.text);
      const rest = ids.length - PRINTED_LINES;
      const heading = rest > 0 ? `, the first ${PRINTED_LINES} of ${ids.length} lines` : "";
      const lines = Array.from(ids.subarray(0, PRINTED_LINES), (id) =>
        make("div", "", drawText(this.contents.lines[id], this.contents.colours(id))),
      );
      const code = make("div", "printed-code", ...lines);
      parts.push(make("section", "", make("h2", "", `Stage ${this.stage} ${stage.spelling}${heading}`), code));
    }
    parts.push(...drawTables(this.graph.tables.filter(isText)));
    get("print").replaceChildren(make("h1", "", get("program").textContent), ...parts);
  }

  press(event) {
    const isTyping = event.target.matches("input[type=search], select");
    if (event.ctrlKey || event.metaKey || event.altKey || get("help").open) return;
    if (event.key === "Escape") this.escape();
    else if (isTyping) return;
    else if (!this.act(event.key)) return;
    event.preventDefault();
  }

  act(key) {
    const actions = {
      1: () => this.show("stages"),
      2: () => this.show("graph"),
      3: () => this.show("results"),
      "[": () => this.showStage(this.stage - 1),
      "]": () => this.showStage(this.stage + 1),
      "{": () => this.stepLinked(-1),
      "}": () => this.stepLinked(1),
      "/": () => get(this.view === "graph" ? "filter" : "pattern").focus(),
      n: () => this.nextMatch(1),
      N: () => this.nextMatch(-1),
      d: () => this.compareWithBefore(),
      p: () => this.graph.files.length && this.showPython(get("python-side").hidden),
      t: () => this.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
      "?": () => get("help").showModal(),
    };
    actions[key]?.();
    return key in actions;
  }

  listen() {
    const on = (id, event, act) => get(id).addEventListener(event, act);
    for (const button of get("tabs").children) button.addEventListener("click", () => this.show(button.dataset.view));
    on("graph", "change", (event) => {
      this.showGraph(Number(event.target.value));
      this.showStage(Math.max(0, this.firstStage()));
    });
    const other = () => (get("other").value === "" ? null : Number(get("other").value));
    on("other", "change", () => this.showStage(this.stage, other()));
    on("numbering", "change", () => this.other !== null && this.showStage(this.stage, this.other));
    on("file", "change", (event) => this.showFile(Number(event.target.value)));
    on("save", "click", () => this.saveText());
    on("theme", "click", () => this.act("t"));
    on("python-button", "click", () => this.act("p"));
    on("help-button", "click", () => this.act("?"));
    on("help", "click", () => get("help").close());
    on("pattern", "input", () => {
      clearTimeout(this.searching);
      this.searching = setTimeout(() => this.search(), 120);
    });
    for (const id of ["regex", "case"]) on(id, "change", () => this.search());
    on("search", "submit", (event) => {
      event.preventDefault();
      clearTimeout(this.searching);
      this.search();
      this.code.focus();
      this.nextMatch(1);
    });
    const rows = KEYS.map(([key, what]) => make("tr", "", make("td", "key", key), make("td", "", what)));
    get("help").append(make("h2", "", "Keys"), make("table", "", make("tbody", "", ...rows)));
    document.addEventListener("keydown", (event) => this.press(event));
    addEventListener("beforeprint", () => this.preparePrint());
    const prefersDark = matchMedia("(prefers-color-scheme: dark)");
    prefersDark.addEventListener("change", () => this.setTheme(prefersDark.matches ? "dark" : "light"));
    this.setTheme(prefersDark.matches ? "dark" : "light");
  }
}

async function main() {
  if (typeof DecompressionStream === "undefined") {
    get("loading").textContent = "This browser is too old for the report: use Chrome 80, Firefox 113, Safari 16.4 or later.";
    return;
  }
  try {
    const page = new Page(new Contents(await readContents(get("data"))));
    get("data").remove();
    get("app").hidden = false;
    page.start();
    page.listen();
    get("loading").remove();
    globalThis.report = page;
  } catch (error) {
    get("loading").textContent = `The report cannot be shown: ${error.message}. The file may be incomplete: copy it again.`;
    throw error;
  }
}

main();
