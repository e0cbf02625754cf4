// Small charts as SVG: bars of parts, and the steps side by side.

/**
 * A bar cut into parts, with what each part is beneath it.
 * @param {{place: (string | number)[], label: string, color: string, target?: string, ops?: (string | number)[]}[]} parts
 * @param {string} label for screen readers
 */
function stackedBar(parts, label) {
  const present = parts.filter((part) => Number(at(part.place)) > 0);
  const total = present.reduce((sum, part) => sum + Number(at(part.place)), 0);
  let x = 0;
  const boxes = present.map((part) => {
    const width = (Number(at(part.place)) / total) * 1000;
    const box = drawing("rect", { x: x.toFixed(2), y: 0, width: Math.max(width - 1.5, 0.8).toFixed(2), height: 24, fill: part.color });
    x += width;
    return box;
  });
  const keys = present.map((part) => {
    const inside = [legendEntry(part.label, part.color), " ", field(part.place, "ns", "strong"),
      ...(part.ops ? [" · ", field(part.ops, "count"), " ops"] : [])];
    const { target } = part;
    if (!target) return element("li", {}, ...inside);
    const holder = element("span", {}, ...inside);
    return element("li", {}, link(holder, () => state.set({ select: state.get("select") === target ? null : target }), { "data-select": target }));
  });
  return element("figure", { class: "stacked" },
    drawing("svg", { viewBox: "0 0 1000 24", preserveAspectRatio: "none", role: "img", "aria-label": label }, ...boxes),
    element("ul", { class: "keys-list" }, ...keys));
}

const MOST_BARS = 400;
const BAR_HEIGHT = 130;

/**
 * Steps side by side, each cut into what its time went to; where that is not known, its host time.
 * @param {(row: number) => void} choose
 */
function stepChart(choose) {
  const counted = countedSteps();
  const rows = counted.slice(0, MOST_BARS);
  const parts = rows.map(partsOfStep);
  const lengths = parts.map((some) => some.reduce((sum, [, ns]) => sum + ns, 0));
  const most = lengths.reduce((a, b) => Math.max(a, b), 1);
  const wide = Math.max(3, Math.min(46, 940 / rows.length));
  const bars = rows.map((row, number) => {
    const step = page.document.steps[row];
    let y = BAR_HEIGHT;
    const boxes = parts[number].map(([what, ns]) => {
      const height = (ns / most) * (BAR_HEIGHT - 4);
      y -= height;
      return drawing("rect", { x: number * wide, y: y.toFixed(2), width: Math.max(wide - 2, 1), height: height.toFixed(2), fill: partColor(what) });
    });
    const label = `${stepName(step)}, ${formatted(step.wall_ns, "ns")}`;
    return drawing("g", { class: "step-bar", tabindex: 0, role: "button", "aria-label": label, onclick: () => choose(row),
      onkeydown: (/** @type {KeyboardEvent} */ event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose(row)) },
      drawing("title", {}, label), ...boxes);
  });
  const whats = [...new Set(parts.flatMap((some) => some.map(([what]) => what)))];
  return element("figure", { class: "steps" },
    element("div", { class: "steps-scroller" }, drawing("svg", { width: Math.max(rows.length * wide, 60), height: BAR_HEIGHT, role: "group", "aria-label": "Length of each step" }, ...bars)),
    element("div", { class: "legend" }, ...whats.map((what) => legendEntry(what === "gpu" ? "GPU busy" : words(what), partColor(what)))),
    rows.length < counted.length && element("p", { class: "note left-out" }, `The first ${MOST_BARS} steps are drawn.`));
}

/** @returns {number[]} rows of the steps that the other tables are about, too */
function countedSteps() {
  const { steps } = page.document;
  const rows = steps.map((/** @type {any} */ _, /** @type {number} */ row) => row);
  const steady = rows.filter((/** @type {number} */ row) => steps[row].steady !== false);
  return steady.length ? steady : rows;
}

/**
 * What the time of a step went to, for its bar: GPU work first, then idle time by cause.
 * @param {number} row
 * @returns {[string, number][]}
 */
function partsOfStep(row) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const part of page.document.step_parts?.parts ?? []) {
    const ns = Number(part.ns[row] ?? 0);
    if (ns > 0) sums.set(part.what, (sums.get(part.what) ?? 0) + ns);
  }
  if (!sums.size) return [["host_time", Number(page.document.steps[row].wall_ns ?? 0)]];
  const order = ["gpu", ...Object.keys(COLORS.idle)];
  return [...sums].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
}

/** @param {string} what */
function partColor(what) {
  return what === "gpu" ? BUSY : COLORS.idle[what] ?? PALETTE.pale;
}

/** @param {any} step */
function stepName(step) {
  return [`${step.unit ?? "step"} ${step.index}`, step.phase].filter(Boolean).join(" · ");
}

/**
 * From the least to the most that a change saves, in percent of the step.
 * @param {{low: number, mid: number, high: number}} saving
 */
function savingBar({ low, mid, high }) {
  const inside = (/** @type {number} */ value) => Math.min(Math.max(value, 0), 100);
  return drawing("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "saving", "aria-hidden": "true" },
    drawing("rect", { x: 0, y: 4, width: 100, height: 2, class: "saving-rail" }),
    drawing("rect", { x: inside(low), y: 2, width: Math.max(inside(high) - inside(low), 0.5), height: 6, class: "saving-range" }),
    drawing("rect", { x: inside(mid) - 0.6, y: 0, width: 1.2, height: 10, class: "saving-mid" }));
}
