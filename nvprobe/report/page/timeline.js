// The timeline: its toolbar, and what the mouse and the keyboard do.

const MOST_HEIGHT = 620;
const SHORTEST = 20; // ns across the whole width

const KEYS = [
  ["+ −", "zoom in and out (or w s, or Ctrl and the wheel)"],
  ["← →", "move left and right (or a d, or drag)"],
  ["Tab , .", "next and previous slice of the row: . and ,"],
  ["↑ ↓", "the row above and below"],
  ["Enter", "select the slice; again: zoom to it"],
  ["[ ]", "previous and next step"],
  ["0", "all of the step; 9: all of the capture"],
  ["Esc", "select nothing"],
  ["/", "search"],
];

class Timeline {
  constructor() {
    const { bands, height } = layOut();
    this.length = page.about.timeline.length_ns;
    this.spans = stepSpans();
    this.bands = bands;
    this.step = this.focus = this.hover = -1;
    this.from = 0;
    this.to = this.length;
    this.waiting = this.saving = 0;
    /** @type {Set<number> | null} */
    this.marked = null;
    this.frameHeight = Math.min(height + AXIS, MOST_HEIGHT);
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", {
      tabindex: 0, role: "img", class: "timeline-canvas",
      "aria-label": "Timeline. Arrow keys move, plus and minus zoom, comma and period go from slice to slice.",
    }));
    const below = element("div");
    below.style.height = `${height + AXIS - this.frameHeight}px`; // what there is to scroll
    this.scroller = element("div", { class: "timeline-scroller" }, this.canvas, below);
    this.scroller.style.height = `${this.frameHeight + 2}px`;
    this.map = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "map", "aria-hidden": "true",
      title: "The whole capture: how busy its streams are. Drag to move the view." }));
    this.said = element("p", { class: "said", role: "status", "aria-live": "polite" });
    this.chooser = this.stepChooser();
    this.element = element("div", { class: "timeline" }, this.toolbar(), this.map, this.scroller, this.said, legend());
    this.painter = new Painter(this.canvas, bands);
    this.listen();
    this.show(this.firstView());
    state.listen((changed) => this.follow(changed));
    this.mark();
  }

  stepChooser() {
    const options = page.document.steps.map((/** @type {any} */ step, /** @type {number} */ row) =>
      this.reaches(row) && element("option", { value: row }, `${stepName(step)}${this.has(row) ? "" : " (not in detail)"}`));
    return /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Step", id: "step",
      onchange: () => this.chooseStep(Number(this.chooser.value)) },
      element("option", { value: -1 }, "whole capture"), ...options));
  }

  toolbar() {
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) =>
      element("button", { type: "button", class: "tool", "aria-label": label, title: label, onclick: act }, text);
    return element("div", { class: "toolbar", role: "toolbar", "aria-label": "Timeline" },
      this.spans.length > 0 && button("‹", "Previous step", () => this.nextStep(-1)),
      this.spans.length > 0 && this.chooser,
      this.spans.length > 0 && button("›", "Next step", () => this.nextStep(1)),
      button("−", "Zoom out", () => this.zoom(2)),
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("Fit", "Show all of the step", () => this.fit()),
      element("details", { class: "keys" }, element("summary", {}, "Keys"),
        element("dl", {}, ...KEYS.flatMap(([key, text]) => [element("dt", {}, key), element("dd", {}, text)]))));
  }

  /** @param {number} row of the steps: whether its events are in the page */
  has(row) {
    const [start, end] = this.spans[row];
    return page.about.timeline.windows.some((/** @type {number[]} */ one) => one[0] <= start && end <= one[1] + 1);
  }

  /** @param {number} row of the steps: whether it lies in the part of the capture that is counted */
  reaches(row) {
    return this.spans[row][0] < this.length && this.spans[row][1] > 0;
  }

  /** The view of the URL, else a step in the middle of the capture. */
  firstView() {
    if (state.get("to") !== undefined) return [state.number("from", 0), state.number("to", this.length)];
    const step = state.number("step", this.typicalStep());
    return this.viewOfStep(step);
  }

  /** The step of median length among those with events here; -1 without steps. */
  typicalStep() {
    const rows = this.spans.map((_, row) => row).filter((row) => this.has(row));
    rows.sort((a, b) => page.document.steps[a].wall_ns - page.document.steps[b].wall_ns);
    return rows.length ? rows[rows.length >> 1] : -1;
  }

  /** @param {number} step */
  viewOfStep(step) {
    const span = this.spans[step];
    if (!span) return [0, this.length];
    const margin = (span[1] - span[0]) * 0.01;
    this.step = step;
    return [span[0] - margin, span[1] + margin];
  }

  /** @param {number[]} view */
  show([from, to]) {
    const size = Math.min(Math.max(to - from, SHORTEST), this.length * 1.1 + SHORTEST);
    from = Math.min(Math.max(from, -size * 0.5), this.length - size * 0.5);
    [this.from, this.to] = [from, from + size];
    const middle = from + size / 2;
    const step = this.spans.findIndex(([start, end]) => start <= middle && middle < end);
    this.step = size > this.length * 0.95 && this.spans.length > 1 ? -1 : step;
    this.chooser.value = String(this.step);
    this.redraw();
    clearTimeout(this.saving);
    this.saving = setTimeout(() => {
      state.set({ from: Math.round(this.from), to: Math.round(this.to), step: this.step >= 0 ? this.step : null });
    }, 120);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  draw() {
    const width = this.scroller.clientWidth;
    if (!width) return;
    this.painter.draw({
      width, height: this.frameHeight, scroll: this.scroller.scrollTop,
      from: this.from, to: this.to, zero: this.spans[this.step]?.[0] ?? 0,
      marked: this.marked, focus: this.focus, hover: this.hover,
    });
    this.drawMap(width);
  }

  /**
   * The whole capture in a strip: how busy its streams are, its steps, and what is in view.
   * @param {number} width
   */
  drawMap(width) {
    const scale = devicePixelRatio || 1;
    const paint = /** @type {CanvasRenderingContext2D} */ (this.map.getContext("2d"));
    const { bins, tracks, windows } = page.about.timeline;
    const height = 26;
    this.map.width = Math.round(width * scale);
    this.map.height = Math.round(height * scale);
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    const place = (/** @type {number} */ time) => (time / this.length) * width;
    const kind = tracks.some((/** @type {Track} */ one) => one.kind === "stream") ? "stream" : "ranges";
    const shown = tracks.flatMap((/** @type {Track} */ one, /** @type {number} */ track) => (one.kind === kind ? [track] : []));
    const { use } = /** @type {Events} */ (page.events);
    for (let x = 0; x < width; x++) {
      const bin = Math.floor((x / width) * bins);
      const share = Math.max(0, ...shown.map((/** @type {number} */ track) => use[track * bins + bin])) / 255;
      const start = (bin / bins) * this.length;
      const held = windows.some((/** @type {number[]} */ one) => one[0] <= start && start < one[1]);
      paint.fillStyle = held ? PALETTE.blue : this.painter.faint;
      paint.globalAlpha = 0.6;
      paint.fillRect(x, height - 4 - share * 18, 1, share * 18);
    }
    paint.globalAlpha = 1;
    paint.fillStyle = this.painter.line;
    if (this.spans.length < width / 4) for (const [start] of this.spans) paint.fillRect(place(start), 0, 1, height);
    paint.strokeStyle = this.painter.accent;
    paint.lineWidth = 2;
    paint.strokeRect(place(this.from) + 1, 1, Math.max(place(this.to) - place(this.from) - 2, 3), height - 2);
  }

  /** @param {number} factor of the time in view @param {number} [around] ns that stay in place */
  zoom(factor, around = (this.from + this.to) / 2) {
    if ((this.to - this.from) * factor < SHORTEST) return;
    this.show([around - (around - this.from) * factor, around + (this.to - around) * factor]);
  }

  /** @param {number} share of the time in view */
  pan(share) {
    const move = (this.to - this.from) * share;
    this.show([this.from + move, this.to + move]);
  }

  fit() {
    this.show(this.viewOfStep(this.step));
  }

  /** @param {number} step */
  chooseStep(step) {
    this.show(step < 0 ? [0, this.length] : this.viewOfStep(step));
  }

  /** @param {number} by */
  nextStep(by) {
    const first = this.spans.findIndex((_, row) => this.reaches(row));
    const next = this.step < 0 ? (by > 0 ? first : this.spans.length - 1) : this.step + by;
    if (this.spans[next] && this.reaches(next)) this.chooseStep(next);
  }

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.redraw()).observe(this.scroller);
    this.scroller.addEventListener("scroll", () => this.redraw());
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", () => this.zoomTo(this.hover));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.redraw());
    this.map.addEventListener("pointerdown", (event) => this.grabMap(event));
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!sideways && !event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    if (sideways) this.pan((event.deltaX || event.deltaY) / 800);
    else this.zoom(Math.exp(event.deltaY * 0.004), this.timeAt(event.offsetX));
  }

  /** @param {number} x */
  timeAt(x) {
    return this.from + (x - MARGIN) * ((this.to - this.from) / (this.scroller.clientWidth - MARGIN));
  }

  /** @param {PointerEvent} event */
  grab(event) {
    const { canvas } = this;
    const [x, view] = [event.clientX, [this.from, this.to]];
    const pixel = (this.to - this.from) / (this.scroller.clientWidth - MARGIN);
    let moved = false;
    const move = (/** @type {PointerEvent} */ now) => {
      if (Math.abs(now.clientX - x) > 3) moved = true;
      if (moved) this.show(view.map((time) => time - (now.clientX - x) * pixel));
    };
    const drop = () => {
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", drop);
      if (moved) return;
      this.focus = this.hover;
      state.set({ select: this.hover >= 0 ? `slice:${this.hover}` : null });
    };
    canvas.setPointerCapture(event.pointerId);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", drop);
  }

  /** @param {PointerEvent} event */
  grabMap(event) {
    const move = (/** @type {MouseEvent} */ now) => {
      const middle = (now.offsetX / this.scroller.clientWidth) * this.length;
      const size = this.to - this.from;
      this.show([middle - size / 2, middle + size / 2]);
    };
    move(event);
    this.map.setPointerCapture(event.pointerId);
    this.map.addEventListener("pointermove", move);
    this.map.addEventListener("pointerup", () => this.map.removeEventListener("pointermove", move), { once: true });
  }

  /** @param {PointerEvent} event */
  point(event) {
    this.hover = this.sliceUnder(event.offsetX, event.offsetY);
    this.canvas.style.cursor = this.hover >= 0 ? "pointer" : "grab";
    if (this.hover >= 0) showTip(sliceSummary(this.hover), event);
    else hideTip();
    this.redraw();
  }

  leave() {
    this.hover = -1;
    hideTip();
    this.redraw();
  }

  /** @param {number} x @param {number} y */
  sliceUnder(x, y) {
    const inside = y - AXIS + this.scroller.scrollTop;
    const band = this.bands.find((one) => one.row >= 0 && one.top <= inside && inside < one.top + one.height);
    if (!band || x < MARGIN || y < AXIS) return -1;
    const pixel = (this.to - this.from) / (this.scroller.clientWidth - MARGIN);
    return sliceAt(/** @type {Events} */ (page.events), band.row, this.timeAt(x), 2 * pixel);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, () => void>} */
    const acts = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5),
      "-": () => this.zoom(2), s: () => this.zoom(2),
      ArrowLeft: () => this.pan(-0.15), a: () => this.pan(-0.15),
      ArrowRight: () => this.pan(0.15), d: () => this.pan(0.15),
      ArrowUp: () => this.moveRow(-1), ArrowDown: () => this.moveRow(1),
      ".": () => this.moveSlice(1), ",": () => this.moveSlice(-1),
      "[": () => this.nextStep(-1), "]": () => this.nextStep(1),
      0: () => this.fit(), 9: () => this.chooseStep(-1), Home: () => this.fit(),
      Enter: () => this.enter(),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Select the focused slice; if it is selected already, zoom to it. */
  enter() {
    if (this.focus < 0) return;
    if (state.get("select") === `slice:${this.focus}`) this.zoomTo(this.focus);
    else state.set({ select: `slice:${this.focus}` });
  }

  /** @param {number} by rows down */
  moveRow(by) {
    const { first, start, end } = /** @type {Events} */ (page.events);
    const middle = (this.from + this.to) / 2;
    const time = this.focus >= 0 ? (Math.max(start[this.focus], this.from) + Math.min(end[this.focus], this.to)) / 2 : middle;
    let row = this.focus >= 0 ? rowOf(this.focus) + by : 0;
    for (; row >= 0 && row + 1 < first.length; row += by) {
      const slice = sliceAt(/** @type {Events} */ (page.events), row, time, (this.to - this.from) / 2);
      if (slice >= 0) return this.setFocus(slice);
    }
  }

  /** @param {number} by */
  moveSlice(by) {
    if (this.focus < 0) return this.moveRow(1);
    const next = this.focus + by;
    const { start } = /** @type {Events} */ (page.events);
    if (next < 0 || next >= start.length || rowOf(next) !== rowOf(this.focus)) return;
    this.setFocus(next);
  }

  /** @param {number} slice */
  setFocus(slice) {
    const { start, end } = /** @type {Events} */ (page.events);
    this.focus = slice;
    this.said.replaceChildren(...sliceSummary(slice));
    const size = this.to - this.from;
    if (end[slice] < this.from || start[slice] > this.to) this.show([start[slice] - size / 2, start[slice] + size / 2]);
    this.reveal(slice);
    this.redraw();
  }

  /**
   * Scroll so that the slice's row is in view.
   * @param {number} slice
   */
  reveal(slice) {
    const band = this.painter.bandOfRow[rowOf(slice)];
    if (!band) return;
    const { scrollTop } = this.scroller;
    const inside = this.frameHeight - AXIS;
    if (band.top < scrollTop) this.scroller.scrollTop = band.top - 30;
    else if (band.top + band.height > scrollTop + inside) this.scroller.scrollTop = band.top + band.height - inside + 10;
  }

  /** @param {number} slice */
  zoomTo(slice) {
    if (slice < 0) return;
    const { start, end } = /** @type {Events} */ (page.events);
    const margin = Math.max((end[slice] - start[slice]) * 0.15, 200);
    this.show([start[slice] - margin, end[slice] + margin]);
    this.reveal(slice);
  }

  /** Show the first marked slice, if none of them is in view. */
  showMarked() {
    const { start, end } = /** @type {Events} */ (page.events);
    const all = [...(this.marked ?? [])];
    if (!all.length) return;
    if (!all.some((slice) => start[slice] < this.to && end[slice] > this.from)) {
      const first = all.reduce((a, b) => (start[a] <= start[b] ? a : b));
      this.setFocus(first);
    }
  }

  /** @param {Set<string>} changed */
  follow(changed) {
    if (changed.has("theme")) {
      this.painter.readTheme();
      this.redraw();
    }
    if (changed.has("select")) this.mark();
    const [from, to] = [state.number("from", this.from), state.number("to", this.to)];
    const ours = Math.abs(from - this.from) < 2 && Math.abs(to - this.to) < 2;
    if ((changed.has("from") || changed.has("to")) && !ours) this.show([from, to]);
  }

  mark() {
    this.marked = markedSlices();
    this.redraw();
  }
}
