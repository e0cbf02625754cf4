// The top of the page: verdict, step time, where the window went, the ledger, findings.

const METHODS = {
  launch: PALETTE.blue, inherited: PALETTE.sky, repeated: "#88ccee", graph_capture: PALETTE.green, graph_launch: "#7a5195",
};
const REASONS = [PALETTE.orange, PALETTE.yellow, PALETTE.pink, PALETTE.red, PALETTE.gray];

function summary() {
  return element("div", { class: "summary" },
    element("h1", {}, field(["verdict"], "text")),
    figures(), leftOut(), warnings(), windows(), ledger(), findings(), missing());
}

/** The few numbers that one remembers. */
function figures() {
  const { document: found } = page;
  const tiles = [];
  if (found.step_spread && !found.inference) {
    tiles.push(tile("Step, host time", field(["step_spread", "median_ns"], "ns"),
      ["median of ", field(["step_spread", "count"], "count"), " · ", field(["step_spread", "shortest_ns"], "ns"), " to ", field(["step_spread", "longest_ns"], "ns")]));
  }
  if (found.profiler) {
    tiles.push(tile("Step, elapsed, without the profiler", field(["profiler", "unprofiled_step_ns"], "ns"),
      [field(["profiler", "source"], "text"), " · ", field(["profiler", "unprofiled_bounds_ns", 0], "ns"), " to ", field(["profiler", "unprofiled_bounds_ns", 1], "ns"),
        " · with it ", field(["profiler", "profiled_step_ns"], "ns")]));
  }
  if (found.inference?.phases.length) {
    const here = ["inference", "phases", 0];
    tiles.push(tile(element("span", {}, field([...here, "phase"], "text"), " ", field(["inference", "unit"], "text"), ", median"), field([...here, "wall_p50_ns"], "ns"),
      [named("p90 "), field([...here, "wall_p90_ns"], "ns"), named(", p99 "), field([...here, "wall_p99_ns"], "ns"),
        ...(found.inference.phases[0].tokens_per_s === null ? [] : [" · ", field([...here, "tokens_per_s"], "count"), " tokens/s"])]));
  }
  if (found.devices.length) {
    const all = found.devices.length === 1;
    tiles.push(tile("GPU busy", field(["devices", 0, "busy_ns"], "ns"),
      ["of ", field(["devices", 0, "window_ns"], "ns"), all ? "" : ", first GPU"]));
    tiles.push(tile("GPU work", field(["ledger", "ops"], "count"), ["ops · ", field(["ledger", "gpu_ns"], "ns"), " of GPU time"]));
  }
  return element("div", { class: "tiles" }, ...tiles);
}

/** What of a whole run is not counted. */
function leftOut() {
  if (!page.document.left_out) return null;
  const here = "left_out";
  return element("p", { class: "note counted" }, "Counted: the steady steps. Left out: ", field([here, "start_ns"], "ns"), " before the first step, ",
    field([here, "warmup_steps"], "count"), page.document.left_out.warmup_steps === 1 ? " step that had not settled (" : " steps that had not settled (", field([here, "warmup_ns"], "ns"), "), ", field([here, "end_ns"], "ns"), " after the last one.");
}

/** @param {Child} title @param {HTMLElement} figure @param {Child[]} rest */
function tile(title, figure, rest) {
  return element("div", { class: "tile" }, element("h3", {}, title), element("div", { class: "big" }, figure), element("p", {}, ...rest));
}

function warnings() {
  const found = page.document.warnings;
  if (!found.length) return null;
  return element("ul", { class: "warnings", "aria-label": "Warnings" },
    ...found.map((/** @type {string} */ _, /** @type {number} */ row) => element("li", {}, field(["warnings", row], "text"))));
}

/** Where the window of each GPU went: busy, or idle by cause. */
function windows() {
  const { devices, idle } = page.document;
  if (!devices.length) return null;
  const bars = devices.slice(0, 8).flatMap((/** @type {any} */ device, /** @type {number} */ row) => {
    const causes = (idle.by_device ?? [])
      .map((/** @type {any} */ one, /** @type {number} */ number) => ({ ...one, number }))
      .filter((/** @type {any} */ one) => one.device === device.device)
      .sort((/** @type {any} */ a, /** @type {any} */ b) => b.ns - a.ns);
    const parts = [
      { place: ["devices", row, "busy_ns"], label: "busy", color: BUSY },
      ...causes.map((/** @type {any} */ one) => ({
        place: ["idle", "by_device", one.number, "ns"], label: `idle: ${words(one.cause)}`,
        color: COLORS.idle[one.cause] ?? PALETTE.gray, target: `cause:${one.cause}`,
      })),
    ];
    const name = deviceName(device.device);
    return [element("h3", {}, "Window of ", named(visible(name)), ", ", field(["devices", row, "window_ns"], "ns")),
      stackedBar(parts, `Window of ${name}: busy, and idle by cause`)];
  });
  return element("div", { class: "panel" }, element("h2", {}, "Where the time went"), ...bars);
}

/** Every op once, by how its owner was found. */
function ledger() {
  const { methods, unresolved } = page.document.ledger;
  if (!page.document.ledger.ops) return null;
  const parts = [
    ...Object.keys(methods).map((name) => ({
      place: ["ledger", "methods", name, "gpu_ns"], ops: ["ledger", "methods", name, "ops"], label: words(name),
      color: METHODS[/** @type {keyof typeof METHODS} */ (name)] ?? PALETTE.gray,
    })),
    ...Object.keys(unresolved).map((name, number) => ({
      place: ["ledger", "unresolved", name, "gpu_ns"], ops: ["ledger", "unresolved", name, "ops"], label: `no owner: ${words(name)}`, color: REASONS[number % REASONS.length],
    })),
  ];
  const outside = page.document.ledger.outside && element("p", { class: "note" }, "Left out: ",
    field(["ledger", "outside", "ops"], "count"), " ops, ", field(["ledger", "outside", "gpu_ns"], "ns"), " of GPU time.");
  return element("div", { class: "panel" }, element("h2", {}, "Ledger: how the owner of each op was found"),
    stackedBar(parts, "GPU time by how its owner was found"), outside);
}

function findings() {
  const found = page.document.findings ?? [];
  if (!found.length) return null;
  return element("div", { class: "panel" }, element("h2", {}, "Findings"),
    element("ol", { class: "findings" }, ...found.map((/** @type {any} */ one, /** @type {number} */ row) => finding(one, row))));
}

/** @param {any} one @param {number} row */
function finding(one, row) {
  const here = ["findings", row];
  const path = rowOfPath.get(one.path);
  const where = [
    one.path && (path === undefined ? field([...here, "path"], "path", "where")
      : link(field([...here, "path"], "path", "where"), () => state.set({ select: `path:${path}`, section: "timeline" }))),
    ...one.sources.map((/** @type {string} */ _, /** @type {number} */ number) => element("span", { class: "source-line" },
      field([...here, "sources", number], "text"),
      one.source_roles[number] && one.source_roles[number] !== "line" ? element("i", {}, ` ${words(one.source_roles[number])}`) : "")),
  ];
  const evidence = Object.keys(one.evidence);
  return element("li", { class: `finding ${one.severity}`, id: `finding-${row}` },
    element("div", { class: "finding-head" }, element("span", { class: `chip ${one.severity}` }, one.severity),
      element("h3", {}, field([...here, "title"], "text")), saving(one, row)),
    element("p", { class: "places" }, ...where),
    one.try.length ? element("ul", { class: "try" }, ...one.try.map((/** @type {string} */ _, /** @type {number} */ number) =>
      element("li", {}, field([...here, "try", number], "text")))) : null,
    evidence.length ? element("details", {}, element("summary", {}, "Evidence"),
      factList(evidence.map((name) => /** @type {[string, Child]} */ ([words(name).replace(/ ns$/, ""),
        field([...here, "evidence", name], evidenceFormat(name, one.evidence[name]))])))) : null);
}

/**
 * What its change would save: of the step where it was replayed, else of the window.
 * @param {any} one
 * @param {number} row
 */
function saving(one, row) {
  const here = ["findings", row];
  if (one.step_saving) {
    const of = [...here, "step_saving"];
    return element("div", { class: "saves" }, savingBar(one.step_saving),
      element("span", {}, "saves ", field([...of, "low"], "percent"), " to ", field([...of, "high"], "percent"), " of a step, likely ", field([...of, "mid"], "percent", "strong"),
        one.step_saving.instead_of ? element("span", {}, ", instead of finding ", field([...of, "instead_of"], "count")) : ""));
  }
  if (!Number(one.saves_ns[1])) return null;
  return element("div", { class: "saves" }, element("span", {}, "saves ", field([...here, "saves_ns", 0], "ns"), " to ", field([...here, "saves_ns", 1], "ns"), " of the window"));
}

/** @param {string} name @param {unknown} value */
function evidenceFormat(name, value) {
  if (typeof value === "string") return "text";
  if (/_ns(_per_\w+)?$|_ns_/.test(name)) return "ns";
  if (/bytes/.test(name)) return "bytes";
  return /share|_of_gpu_time$/.test(name) && Number(value) <= 1 ? "share" : "count";
}

/** What the capture cannot say, and what this page leaves out. */
function missing() {
  const { missing: found } = page.document;
  const left = page.about.left_out;
  if (!found.length && !left.length) return null;
  return element("details", { class: "panel missing", open: left.length > 0 },
    element("summary", {}, "What is missing"),
    element("ul", {}, ...left.map((/** @type {string} */ text) => element("li", { class: "left-out" }, text)),
      ...found.map((/** @type {any} */ _, /** @type {number} */ row) => element("li", {}, field(["missing", row, "what"], "text", "strong"), ": ",
        field(["missing", row, "why"], "text"), ". To record it: ", field(["missing", row, "how"], "text")))));
}
