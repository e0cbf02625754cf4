// An icicle: a tree whose boxes are as wide as what they stand for. It knows nothing of profiles.

const BOX = 22;
const NARROWEST = 1;

/**
 * What an icicle shows. Rows stand in the order in which they are drawn, parents before children.
 * @typedef {object} Tree
 * @property {number[]} parent row above each, -1 for the top
 * @property {string[]} name
 * @property {(row: number) => number} size what its width stands for
 * @property {(row: number) => string} color
 * @property {(row: number) => boolean} dimmed
 * @property {(row: number) => (Node | string)[]} describe for the mouse and for screen readers
 * @property {(row: number) => void} select
 * @property {(row: number) => void} enter look at it and what is below it only; -1: at all
 */

class Icicle {
  /**
   * @param {Tree} tree
   * @param {string} label for screen readers
   */
  constructor(tree, label) {
    this.tree = tree;
    this.root = -1;
    this.selected = -1;
    this.focus = -1;
    /** @type {{row: number, x: number, y: number, width: number}[]} */
    this.boxes = [];
    this.children = childrenOf(tree.parent);
    this.depth = BOX;
    this.waiting = 0;
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", {
      class: "icicle-canvas", tabindex: 0, role: "img",
      "aria-label": `${label}. Arrow keys move through the tree, Enter selects, plus enters, minus leaves.`,
    }));
    this.said = element("p", { class: "said", role: "status", "aria-live": "polite" });
    this.element = element("div", { class: "icicle" }, this.canvas, this.said);
    this.paint = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    new ResizeObserver(() => this.redraw()).observe(this.element);
    this.listen();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  /** Place the boxes, row by row; boxes narrower than a pixel are left out with all below them. */
  place() {
    const width = this.element.clientWidth;
    const tops = this.root < 0 ? this.children[this.children.length - 1] : [this.root];
    const total = tops.reduce((sum, row) => sum + this.tree.size(row), 0);
    /** @type {typeof this.boxes} */
    const boxes = [];
    /** @type {{rows: number[], x: number, y: number, scale: number}[]} */
    const waiting = total > 0 ? [{ rows: tops, x: 0, y: 0, scale: width / total }] : [];
    for (let level = waiting.pop(); level; level = waiting.pop()) {
      const { rows, y, scale: each } = level;
      let { x } = level;
      for (const row of rows) {
        const wide = this.tree.size(row) * each;
        if (wide >= NARROWEST) {
          boxes.push({ row, x, y, width: wide });
          const below = this.children[row];
          const sum = below.reduce((all, one) => all + this.tree.size(one), 0);
          // Children of several threads can add up to more than what is above them.
          const scale = each * Math.min(1, this.tree.size(row) / (sum || 1));
          if (below.length) waiting.push({ rows: below, x, y: y + BOX, scale });
        }
        x += wide;
      }
    }
    this.boxes = boxes;
    this.depth = boxes.reduce((most, box) => Math.max(most, box.y + BOX), BOX);
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    this.place();
    const scale = devicePixelRatio || 1;
    const { paint, canvas } = this;
    canvas.style.height = `${this.depth}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(this.depth * scale);
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const font = style.getPropertyValue("--font");
    paint.font = `11.5px ${font}`;
    paint.textBaseline = "middle";
    const accent = style.getPropertyValue("--accent").trim();
    for (const box of this.boxes) this.box(box);
    const chosen = this.boxes.filter((box) => box.row === this.selected || box.row === this.focus);
    for (const { row, x, y, width: wide } of chosen) {
      paint.strokeStyle = accent;
      paint.lineWidth = row === this.selected ? 2.5 : 1.5;
      paint.strokeRect(x + 1, y + 1, Math.max(wide - 3, 1), BOX - 3);
    }
  }

  /** @param {{row: number, x: number, y: number, width: number}} box */
  box({ row, x, y, width }) {
    const { paint, tree } = this;
    const color = tree.color(row);
    paint.globalAlpha = tree.dimmed(row) ? 0.3 : 1;
    paint.fillStyle = color;
    paint.fillRect(x, y, Math.max(width - 1, 0.6), BOX - 1);
    if (width > 24) {
      paint.fillStyle = inkOn(color);
      const text = fitting(paint, visible(tree.name[row]), width - 9);
      if (text) paint.fillText(text, x + 4, y + BOX / 2);
    }
    paint.globalAlpha = 1;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      const row = this.rowAt(event.offsetX, event.offsetY);
      canvas.style.cursor = row >= 0 ? "pointer" : "default";
      if (row >= 0) showTip(this.tree.describe(row), event);
      else hideTip();
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("click", (event) => {
      this.focus = this.rowAt(event.offsetX, event.offsetY);
      this.tree.select(this.focus);
    });
    canvas.addEventListener("dblclick", (event) => {
      const row = this.rowAt(event.offsetX, event.offsetY);
      this.tree.enter(row === this.root ? this.tree.parent[row] ?? -1 : row);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {number} x @param {number} y */
  rowAt(x, y) {
    const found = this.boxes.find((box) => box.y <= y && y < box.y + BOX && box.x <= x && x < box.x + box.width);
    return found ? found.row : -1;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowDown: () => this.move(this.children[this.focus]?.find((row) => this.isShown(row))),
      ArrowUp: () => this.move(this.tree.parent[this.focus]),
      ArrowLeft: () => this.move(this.beside(-1)),
      ArrowRight: () => this.move(this.beside(1)),
      Enter: () => this.tree.select(this.focus),
      "+": () => this.tree.enter(this.focus),
      "-": () => this.tree.enter(this.root < 0 ? -1 : this.tree.parent[this.root]),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    if (this.focus < 0 && event.key.startsWith("Arrow")) this.move(this.boxes[0]?.row);
    else acts[event.key]();
  }

  /** @param {number} by the box that far along in the same level */
  beside(by) {
    const here = this.boxes.find((box) => box.row === this.focus);
    const level = this.boxes.filter((box) => box.y === here?.y).sort((a, b) => a.x - b.x);
    return level[level.findIndex((box) => box.row === this.focus) + by]?.row;
  }

  /** @param {number} row */
  isShown(row) {
    return this.boxes.some((box) => box.row === row);
  }

  /** @param {number | undefined} row */
  move(row) {
    if (row === undefined || row < 0 || !this.isShown(row)) return;
    this.focus = row;
    this.said.replaceChildren(...this.tree.describe(row));
    this.redraw();
  }
}

/**
 * The rows below each row; the last entry: those at the top.
 * @param {number[]} parent
 */
function childrenOf(parent) {
  /** @type {number[][]} */
  const children = Array.from({ length: parent.length + 1 }, () => []);
  parent.forEach((above, row) => children[above < 0 ? parent.length : above].push(row));
  return children;
}
