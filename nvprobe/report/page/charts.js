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

/**
 * Steps side by side: host time, and beneath it what of it the GPU was busy.
 * @param {(row: number) => void} choose
 */
function stepChart(choose) {
  const { steps } = page.document;
  const most = Math.max(1, ...steps.map((/** @type {any} */ step) => Number(step.wall_ns ?? 0)));
  const wide = Math.max(3, Math.min(46, 940 / steps.length));
  const bars = steps.map((/** @type {any} */ step, /** @type {number} */ row) => {
    const tall = (Number(step.wall_ns ?? 0) / most) * 120;
    const busy = Math.min(tall, (Number(step.gpu_busy_ns ?? 0) / most) * 120);
    const bar = (/** @type {number} */ height, /** @type {string} */ name) =>
      drawing("rect", { x: row * wide, y: 124 - height, width: Math.max(wide - 2, 1), height: Math.max(height, 0), class: name });
    const title = drawing("title", {}, `step ${step.index}: ${formatted(step.wall_ns, "ns")}`);
    return drawing("g", { class: "step-bar", tabindex: 0, role: "button", "aria-label": `step ${step.index}, ${formatted(step.wall_ns, "ns")}`,
      onclick: () => choose(row),
      onkeydown: (/** @type {KeyboardEvent} */ event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose(row)) },
      title, bar(tall, "step-host"), bar(busy, "step-busy"));
  });
  return element("figure", { class: "steps" },
    drawing("svg", { width: Math.max(steps.length * wide, 60), height: 128, role: "group", "aria-label": "Length of each step" }, ...bars),
    element("div", { class: "legend" }, legendEntry("host time of a step", PALETTE.pale), legendEntry("of it, GPU busy", PALETTE.blue)));
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
