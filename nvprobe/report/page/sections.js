// The tables beneath the pictures: each section is a function of the document, null without rows.

/** @type {(title: string, key: string, format?: string, rest?: object) => Column} */
const col = (title, key, format = "count", rest = {}) => ({ title, key: key.split("."), format, ...rest });

/** @param {string | null | undefined} path */
const pathTarget = (path) => {
  const row = path === null || path === undefined ? undefined : rowOfPath.get(path);
  return row === undefined ? null : `path:${row}`;
};

/**
 * @param {string} title
 * @param {string} list
 * @param {Column[]} columns
 * @param {{sort?: string, target?: (row: any, number: number) => string | null}} options
 */
function tableOf(title, list, columns, { sort, target } = {}) {
  const place = list.split(".");
  const rows = at(place);
  if (!rows?.length) return null;
  const table = new Table(place, columns, { sort, target: (row) => (target ? target(rows[row], row) : null) });
  return element("div", { class: "panel" }, element("h3", {}, title), table.element);
}

/** @param {(Node | null)[]} parts */
const some = (...parts) => (parts.some((part) => part) ? element("div", {}, ...parts) : null);

const byPath = (/** @type {any} */ row) => pathTarget(row.path);

function kernelsSection() {
  return some(
    tableOf("By name", "kernels", [
      col("kernel", "short_name", "text", { most: 56 }), col("GPU time", "gpu_ns", "ns", { bar: true }), col("launches", "ops"),
      col("longest", "longest_ns", "ns"), col("mostly in", "top_path", "path", { most: 40 }), col("family", "family", "text"), col("precision", "precision", "text"),
      col("tensor cores", "tensor_cores", "text"), col("occupancy", "occupancy", "share"), col("waves", "waves"),
      col("limited by", "limiter", "text"), col("suspect", "suspect_ops"),
    ], { target: (_, number) => `kernel:${number}` }),
    tableOf("Copies and sets", "copies", [
      col("kind", "name", "text"), col("GPU time", "gpu_ns", "ns", { bar: true }), col("count", "ops"), col("bytes", "bytes", "bytes"),
      col("mostly in", "top_path", "path", { most: 60 }),
    ], { target: (_, number) => `kernel:${page.document.kernels.length + number}` }),
    tableOf("Operators", "operators", [
      col("operator", "name", "text", { most: 60 }), col("GPU time", "gpu_ns", "ns", { bar: true }), col("of it itself", "gpu_self_ns", "ns"),
      col("calls", "calls"), col("ops", "ops"), col("host time", "cpu_ns", "ns"), col("line", "source", "text"), col("mostly in", "path", "path", { most: 44 }),
    ], { target: byPath }),
    tableOf("Modules", "modules", [
      col("module", "module", "text", { most: 60 }), col("forward", "forward_gpu_ns", "ns", { bar: true }), col("backward", "backward_gpu_ns", "ns", { bar: true }),
      col("recomputed", "recompute_gpu_ns", "ns"), col("ops", "ops"), col("lines", "sources", "text", { most: 60 }),
    ]));
}

function waitsSection() {
  return some(
    tableOf("Waits of the host for the GPU", "syncs", [
      col("call", "call", "text"), col("GPU idle it causes", "bubble_ns", "ns", { bar: true }), col("host waits", "wait_ns", "ns", { bar: true }),
      col("calls", "count"), col("line", "source", "text"), col("around it", "place", "text"), col("operator", "operator", "text"),
      col("path", "path", "path", { most: 44 }), col("waits for", "awaited_op", "text", { most: 40 }),
    ], { target: byPath }),
    tableOf("GPU idle by path and cause", "idle.by_path", [
      col("path", "path", "path", { most: 70 }), col("cause", "cause", "text"), col("GPU idle", "ns", "ns", { bar: true }),
    ], { sort: "ns", target: byPath }),
    tableOf("GPU idle by line", "idle.by_line", [
      col("line", "line", "text"), col("what it is", "role", "text"), col("cause", "cause", "text"), col("GPU idle", "ns", "ns", { bar: true }), col("samples", "samples"),
    ], { sort: "ns" }),
    tableOf("Host time between launches", "host", [
      col("path", "path", "path", { most: 60 }), col("host time", "host_ns", "ns", { bar: true }), col("of it, GPU idle", "idle_ns", "ns"),
      col("launches", "launches"), col("operator", "operator", "text"), col("line", "line", "text"),
    ], { sort: "host_ns", target: byPath }));
}

function overlapSection() {
  const { overlap } = page.document;
  if (!overlap) return null;
  const names = Object.keys(overlap.classes);
  const parts = names.map((name, number) => ({
    place: ["overlap", "classes", name], label: words(name.replaceAll("+", " + ")), color: Object.values(PALETTE)[(number + 4) % 9],
  }));
  return some(
    names.length ? element("div", { class: "panel" }, element("h3", {}, "What ran at once"), stackedBar(parts, "GPU busy time by the classes that ran together"),
      Number(overlap.exposed_comm_ns) > 0 ? element("p", { class: "note" }, "Communication without compute beside it: ", field(["overlap", "exposed_comm_ns"], "ns", "strong")) : null) : null,
    tableOf("Streams", "overlap.streams", [
      col("GPU", "device", "plain"), col("stream", "stream", "plain"), col("busy", "busy_ns", "ns", { bar: true }), col("of it alone", "alone_ns", "ns"), col("ops", "ops"),
    ]),
    tableOf("Streams that ran at once", "overlap.pairs", [
      col("GPU", "device", "plain"), col("one stream", "streams.0", "plain"), col("the other", "streams.1", "plain"), col("both", "ns", "ns", { bar: true }),
    ]),
    tableOf("Paths that ran at once", "overlap.path_pairs", [
      col("one path", "first", "path"), col("the other", "second", "path"), col("both", "ns", "ns", { bar: true }),
    ]),
    tableOf("Communication", "collectives", [
      col("kernel", "name", "text", { most: 60 }), col("operation", "collective", "text"), col("exposed", "exposed_ns", "ns", { bar: true }), col("GPU time", "gpu_ns", "ns", { bar: true }),
      col("count", "count"), col("longest", "longest_ns", "ns"), col("bytes", "bytes", "bytes"), col("path", "path", "path", { most: 44 }),
    ], { target: byPath }),
    tableOf("Who waits for whom", "collectives_by_process", [
      col("operation", "collective", "text"), col("process", "process", "plain"), col("GPU", "device", "plain"), col("waits", "wait_ns", "ns", { bar: true }),
      col("transfers", "transfer_ns", "ns"), col("GPU time", "gpu_ns", "ns"), col("collectives", "count"), col("arrives last", "last"),
      col("others wait for it", "awaited_ns", "ns", { bar: true }), col("path", "path", "path", { most: 44 }),
    ], { target: byPath }));
}

function graphsSection() {
  const graphs = page.document.compiled_graphs ?? [];
  if (!graphs.length) return null;
  return some(
    tableOf("Compiled graphs", "compiled_graphs", [
      col("graph", "id", "text"), col("phase", "phase", "text"), col("GPU time", "gpu_ns", "ns", { bar: true }), col("calls", "calls"), col("ops", "ops"),
      col("Triton kernels", "kernels.triton.gpu_ns", "ns"), col("library kernels", "kernels.library.gpu_ns", "ns"), col("host time", "host_ns", "ns"),
      col("dispatch", "dispatch_ns", "ns"), col("guards", "guard_ns", "ns"), col("ends because", "break_reason", "text", { most: 160, wraps: true }), col("at", "break_source", "text"),
      col("idle at the break", "break_idle_ns", "ns"), col("recompiled", "recompiles"), col("why compiled again", "recompile_reasons", "text", { most: 160, wraps: true }),
      col("compiling", "compile_ns", "ns"), col("CUDA graphs replayed", "cudagraph.replayed"),
    ]),
    ...graphs.slice(0, 40).map((/** @type {any} */ graph, /** @type {number} */ row) => graph.modules.length || graph.sources.length
      ? element("details", { class: "panel", open: row < 2 }, element("summary", {}, "Graph ", field(["compiled_graphs", row, "id"], "text"), " ", field(["compiled_graphs", row, "phase"], "text"), ": modules and lines"),
        element("div", { class: "columns" },
          tableOf("Modules", `compiled_graphs.${row}.modules`, [col("module", "module", "text"), col("GPU time", "gpu_ns", "ns", { bar: true }), col("share", "weight", "share")]),
          tableOf("Lines", `compiled_graphs.${row}.sources`, [col("line", "source", "text"), col("GPU time", "gpu_ns", "ns", { bar: true })])))
      : null));
}

function inferenceSection() {
  if (!page.document.inference) return null;
  const { budget } = page.document.inference;
  return some(
    tableOf("Phases", "inference.phases", [
      col("phase", "phase", "text"), col("steps", "steps"), col("median", "wall_p50_ns", "ns", { bar: true }), col("p90", "wall_p90_ns", "ns"), col("p99", "wall_p99_ns", "ns"),
      col("GPU busy", "busy_ns", "ns"), col("interval", "interval_ns", "ns"), col("between steps", "gap_ns", "ns"), col("total", "total_ns", "ns"),
      col("requests", "requests"), col("tokens", "tokens"), col("tokens/s", "tokens_per_s"),
    ]),
    budget.length ? element("div", { class: "panel" }, element("h3", {}, "An average step of the first phase"),
      stackedBar(budget.map((/** @type {any} */ part, /** @type {number} */ row) => ({
        place: ["inference", "budget", row, "ns"], label: words(part.part), color: part.part === "busy" ? BUSY : Object.values(PALETTE)[row % 9],
      })), "Parts of a mean step")) : null,
    tableOf("Slowest steps", "inference.slowest", [
      col("reason", "reason", "text"), col("step", "index", "plain"), col("phase", "phase", "text"), col("interval", "interval_ns", "ns", { bar: true }),
      col("usual", "usual_ns", "ns"), col("longer by", "reason_ns", "ns"),
    ]));
}

function stepsSection() {
  if (!page.document.steps.length) return null;
  const choose = (/** @type {number} */ row) => {
    const [from, to] = spanOf(page.document.steps[row]);
    state.set({ step: row, from, to, section: "timeline" });
  };
  return some(
    element("div", { class: "panel" }, element("h3", {}, "Length of each counted step"), stepChart(choose)),
    tableOf("Steps", "steps", [
      col("path", "path", "path"), col("step", "index", "plain"), col("unit", "unit", "text"), col("phase", "phase", "text"), col("host time", "wall_ns", "ns", { bar: true }), col("GPU busy", "gpu_busy_ns", "ns", { bar: true }),
      col("GPU idle", "idle_ns", "ns"), col("ops", "ops"), col("prefill tokens", "prefill_tokens"), col("decode tokens", "decode_tokens"),
      col("requests", "decode_requests"), col("counted", "steady", "text"), col("launches without a record", "missing_launches"), col("process", "process", "plain"),
    ]));
}

function memorySection() {
  const { memory } = page.document;
  if (!memory) return null;
  const snapshots = memory.snapshot?.devices ?? [];
  return some(
    tableOf("Allocator of torch", "memory.allocator.devices", [
      col("GPU", "device", "plain"), col("peak", "peak_bytes", "bytes", { bar: true }), col("peak reserved", "peak_reserved_bytes", "bytes"), col("memory of the GPU", "capacity_bytes", "bytes"),
      col("growth per step", "growth_bytes", "bytes"), col("retries", "retries"), col("from the driver", "device_allocs"), col("back to it", "device_frees"), col("failed", "out_of_memory"),
    ]),
    tableOf("Allocation events", "memory.devices", [
      col("GPU", "device", "plain"), col("peak", "peak_bytes", "bytes", { bar: true }), col("at the peak in", "peak_path", "path"), col("growth", "growth_bytes", "bytes"), col("events", "events"),
    ]),
    tableOf("Memory by path", "memory.paths", [
      col("path", "path", "path", { most: 70 }), col("allocated", "allocated_bytes", "bytes", { bar: true }), col("peak", "peak_bytes", "bytes"), col("growth", "growth_bytes", "bytes"), col("allocations", "allocations"),
    ], { sort: "allocated_bytes", target: byPath }),
    tableOf("Memory by step", "memory.steps", [
      col("step", "index", "plain"), col("GPU", "device", "plain"), col("peak", "peak_bytes", "bytes", { bar: true }), col("growth", "growth_bytes", "bytes"),
    ]),
    ...snapshots.map((/** @type {any} */ _, /** @type {number} */ row) => tableOf("Who held memory at the peak", `memory.snapshot.devices.${row}.holders`, [
      col("line", "line", "text"), col("path", "path", "path"), col("held", "bytes", "bytes", { bar: true }), col("freed in the step", "passing_bytes", "bytes"), col("allocations", "allocations"),
    ])));
}

function captureSection() {
  return some(
    tableOf("Files", "sources", [col("file", "file", "text"), col("kind", "kind", "text"), col("version", "product_version", "text"), col("lost events", "lost_events")]),
    tableOf("Processes", "processes", [col("process", "id", "plain"), col("program", "name", "text"), col("pid", "pid", "plain"), col("rank", "rank", "plain"), col("initiating thread", "initiating_thread", "plain")]),
    tableOf("GPUs", "devices", [col("GPU", "device", "plain"), col("model", "name", "text"), col("busy", "busy_ns", "ns"), col("idle", "idle_ns", "ns"), col("window", "window_ns", "ns"), col("ops", "ops")]),
    tableOf("Start/end ranges", "spans", [col("name", "name", "text"), col("time", "wall_ns", "ns", { bar: true }), col("count", "calls"), col("longest", "longest_ns", "ns"), col("never ended", "unclosed")]));
}
