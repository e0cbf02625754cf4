// GPU time by path: the icicle of the document's ranges.

/** What the width of a path can stand for: a field of its range, and its name here. */
const QUANTITIES = {
  gpu_ns: "GPU time", gpu_self_ns: "GPU self time", idle_ns: "GPU idle", sync_ns: "waits",
  wall_ns: "host time", exposed_comm_ns: "exposed communication", allocated_bytes: "memory allocated",
};

/** From pale to dark blue: how much of the time is the path's own. */
const SEQUENCE = ["#e3eef9", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b"];

class Paths {
  constructor() {
    const { parent, name } = page.about.tree;
    this.ranges = page.document.ranges;
    /** @type {Set<number> | null} rows that a search found */
    this.found = null;
    this.most = this.ranges.reduce((/** @type {number} */ most, /** @type {any} */ one) => Math.max(most, Number(one.gpu_self_ns)), 1);
    /** @type {string[] | undefined} */
    this.quantities = undefined;
    this.memory = new Map((page.document.memory?.paths ?? []).map((/** @type {any} */ one, /** @type {number} */ row) => [one.path, row]));
    this.icicle = new Icicle({
      parent, name,
      size: (row) => this.size(row),
      color: (row) => this.color(row),
      dimmed: (row) => this.found !== null && !this.found.has(row),
      describe: (row) => pathSummary(row, this.quantity),
      select: (row) => state.set({ select: row >= 0 ? `path:${row}` : null }),
      enter: (row) => state.set({ root: row >= 0 ? row : null }),
    }, "Time by path");
    this.keys = element("div", { class: "legends" });
    this.crumbs = element("div", { class: "crumbs" });
    this.element = element("div", {}, this.toolbar(), this.crumbs, this.icicle.element, this.keys);
    this.follow();
    state.listen((changed) => {
      if (["quantity", "root", "select", "theme"].some((name) => changed.has(name))) this.follow();
    });
  }

  get quantity() {
    const chosen = state.get("quantity") ?? "gpu_ns";
    return this.known.includes(chosen) ? chosen : this.known[0] ?? "gpu_ns";
  }

  /** Quantities that this capture has. */
  get known() {
    return this.quantities ??= Object.keys(QUANTITIES).filter((name) => {
      if (name === "allocated_bytes") return this.memory.size > 0;
      return this.ranges.some((/** @type {any} */ one) => Number(one[name]) > 0);
    });
  }

  toolbar() {
    return element("div", { class: "toolbar", role: "radiogroup", "aria-label": "Width of a path" },
      ...this.known.map((name) => element("button", {
        type: "button", class: "tool", role: "radio", "data-quantity": name,
        onclick: () => state.set({ quantity: name }),
      }, QUANTITIES[/** @type {keyof typeof QUANTITIES} */ (name)])));
  }

  /** @param {number} row */
  size(row) {
    const one = this.ranges[row];
    if (this.quantity === "allocated_bytes") {
      return Number(page.document.memory.paths[this.memory.get(one.path) ?? -1]?.allocated_bytes ?? 0);
    }
    if (this.quantity === "gpu_self_ns") return Number(one.gpu_ns);
    return Math.max(0, Number(one[this.quantity] ?? 0));
  }

  /** @param {number} row by kind; of a path's own time, by how much it is */
  color(row) {
    const one = this.ranges[row];
    if (this.quantity !== "gpu_self_ns") return RANGE_KINDS[/** @type {keyof typeof RANGE_KINDS} */ (one.kind)] ?? PALETTE.gray;
    return SEQUENCE[Math.round(Math.sqrt(one.gpu_self_ns / this.most) * (SEQUENCE.length - 1))];
  }

  /** What the colors mean. */
  key() {
    if (this.quantity === "gpu_self_ns") {
      return element("div", { class: "legend" }, element("b", {}, "GPU self time"),
        legendEntry("little", SEQUENCE[0]), legendEntry("some", SEQUENCE[4]), legendEntry("most", SEQUENCE[7]));
    }
    const kinds = Object.keys(RANGE_KINDS).filter((kind) => this.ranges.some((/** @type {any} */ one) => one.kind === kind));
    return element("div", { class: "legend" }, element("b", {}, "kinds"),
      ...kinds.map((kind) => legendEntry(kind, RANGE_KINDS[/** @type {keyof typeof RANGE_KINDS} */ (kind)])));
  }

  follow() {
    const { icicle } = this;
    icicle.root = state.number("root", -1);
    if (!this.ranges[icicle.root]) icicle.root = -1;
    icicle.selected = selectedPath();
    for (const button of this.element.querySelectorAll("[data-quantity]")) {
      button.setAttribute("aria-checked", String(button.getAttribute("data-quantity") === this.quantity));
    }
    const trail = [];
    for (let row = icicle.root; row >= 0; row = page.about.tree.parent[row]) trail.unshift(row);
    const enter = (/** @type {number} */ row) => () => state.set({ root: row >= 0 ? row : null });
    this.crumbs.hidden = !trail.length;
    this.crumbs.replaceChildren(link("all paths", enter(-1)),
      ...trail.flatMap((row) => [" / ", link(named(visible(page.about.tree.name[row])), enter(row))]));
    this.keys.replaceChildren(this.key());
    icicle.redraw();
  }
}

/** The path that the selection is about, or belongs to; -1 for none. */
function selectedPath() {
  const { kind, row } = state.selected;
  if (kind === "path") return row;
  if (kind === "slice" && page.events) return page.events.path[row] ?? -1;
  if (kind === "kernel") return rowOfPath.get(at([...kernelPlace(row), "top_path"])) ?? -1;
  return -1;
}

/**
 * Per row of the ranges: 1 for a row itself and for what is below it.
 * @param {number} top
 */
function pathsBelow(top) {
  const { parent } = page.about.tree;
  const below = new Uint8Array(parent.length);
  for (let row = Math.max(top, 0); row < parent.length; row++) below[row] = Number(row === top || below[parent[row]] === 1);
  return below;
}

/** @param {number} row @param {string} quantity */
function pathSummary(row, quantity) {
  const own = quantity === "allocated_bytes" ? "gpu_ns" : quantity;
  return [
    element("b", { class: "name" }, shortened(formatted(page.document.ranges[row].path, "path"), 160)), " ",
    field(["ranges", row, own], "ns"), ` ${QUANTITIES[/** @type {keyof typeof QUANTITIES} */ (own)]} · `,
    field(["ranges", row, "ops"], "count"), " ops · ", field(["ranges", row, "calls"], "count"), " calls",
  ];
}
