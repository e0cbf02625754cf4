// Puts the page together: the summary at once, what needs the events when they are unpacked.

/** @type {{id: string, title: string, build: () => HTMLElement | null}[]} */
const SECTIONS = [
  { id: "summary", title: "Summary", build: summary },
  { id: "timeline", title: "Timeline", build: () => (page.about.timeline ? element("div", { class: "panel", id: "timeline-here" }, element("p", { class: "note" }, "Unpacking events …")) : null) },
  { id: "paths", title: "Time by path", build: () => (page.document.ranges.length ? element("div", { class: "panel" }, paths().element) : null) },
  { id: "inference", title: "Inference", build: inferenceSection },
  { id: "kernels", title: "Kernels", build: kernelsSection },
  { id: "waits", title: "Waits", build: waitsSection },
  { id: "overlap", title: "Overlap", build: overlapSection },
  { id: "graphs", title: "Compiled graphs", build: graphsSection },
  { id: "steps", title: "Steps", build: stepsSection },
  { id: "memory", title: "Memory", build: memorySection },
  { id: "capture", title: "Capture", build: captureSection },
];

/** @type {Paths | undefined} */
let madePaths;
const paths = () => (madePaths ??= new Paths());

/** @type {Timeline | undefined} */
let timelineView;

async function start() {
  applyTheme();
  header();
  const main = byId("main");
  const nav = byId("nav");
  for (const { id, title, build } of SECTIONS) {
    const inside = build();
    if (!inside) continue;
    if (id === "summary") requestAnimationFrame(() => performance.mark("summary"));
    main.append(element("section", { id, "aria-label": title }, id === "summary" ? null : element("h2", { class: "section" }, title), inside));
    nav.append(element("a", { href: `#section=${id}`, "data-section": id, onclick: (/** @type {Event} */ event) => {
      event.preventDefault();
      state.set({ section: id });
      goTo(id);
    } }, title));
  }
  new Search((found) => {
    if (!madePaths) return;
    madePaths.found = found;
    madePaths.icicle.redraw();
  });
  state.listen(followView);
  watchSections();
  printInLight();
  await readEvents();
  if (page.events) {
    timelineView = new Timeline();
    byId("timeline-here").replaceChildren(timelineView.element);
  }
  showDetail();
  await settled();
  if (state.get("section")) goTo(state.get("section") ?? "");
  document.documentElement.dataset.ready = "yes";
}

function header() {
  const { sources, devices } = page.document;
  const parts = sources.slice(0, 3).map((/** @type {any} */ _, /** @type {number} */ row) => field(["sources", row, "file"], "text"));
  const names = [...new Set(devices.map((/** @type {any} */ one) => one.name).filter(Boolean))];
  const models = names.map((name) => field(["devices", devices.findIndex((/** @type {any} */ one) => one.name === name), "name"], "text"));
  byId("source").append(...[...parts, ...models].flatMap((part, number) => (number ? [" · ", part] : [part])));
  byId("theme").addEventListener("click", () => state.set({ theme: isDark() ? "light" : "dark" }));
}

/** Paper is light, whatever the screen is; pictures are painted anew for it. */
function printInLight() {
  const repaint = () => {
    timelineView?.painter.readTheme();
    timelineView?.draw();
    madePaths?.icicle.draw();
  };
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    repaint();
  });
  addEventListener("afterprint", () => {
    applyTheme();
    repaint();
  });
}

function isDark() {
  return state.get("theme") ? state.get("theme") === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  const button = byId("theme");
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`);
}

/** @param {Set<string>} changed */
function followView(changed) {
  if (changed.has("theme")) applyTheme();
  if (changed.has("section")) goTo(state.get("section") ?? "summary");
  if (changed.has("select")) {
    showDetail();
    timelineView?.showMarked();
  }
}

/** Wait until what was built has its height. */
function settled() {
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}

/** @param {string} id */
function goTo(id) {
  document.getElementById(id)?.scrollIntoView({ block: "start" });
}

/** The entry of the section in view is marked. */
function watchSections() {
  const seen = new Map();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) seen.set(entry.target.id, entry.isIntersecting);
    const first = SECTIONS.find(({ id }) => seen.get(id));
    for (const entry of byId("nav").children) {
      if (entry.getAttribute("data-section") === first?.id) entry.setAttribute("aria-current", "true");
      else entry.removeAttribute("aria-current");
    }
  }, { rootMargin: "-110px 0px -55% 0px" });
  for (const section of document.querySelectorAll("section")) observer.observe(section);
}

/** What is selected, with its figures, at the bottom of the window. */
function showDetail() {
  const detail = byId("detail");
  const inside = detailOf();
  detail.hidden = !inside;
  if (!inside) return;
  detail.replaceChildren(element("div", { class: "detail-inside" }, inside,
    element("button", { type: "button", class: "quiet close", "aria-label": "Select nothing", onclick: () => state.set({ select: null }) }, "Esc ✕")));
}

/** @returns {HTMLElement | null} */
function detailOf() {
  const { kind, id, row } = state.selected;
  if (kind === "path" && page.document.ranges[row]) return pathDetail(row);
  if (kind === "kernel" && at(kernelPlace(row))) return kernelDetail(row);
  if (kind === "slice" && page.events && row < page.events.start.length) return sliceDetail(row);
  if (kind === "cause" && at(["idle", "causes", id]) !== undefined) return causeDetail(id);
  return null;
}

/** @param {[string, Child][]} facts */
function factList(facts) {
  return element("dl", { class: "facts" }, ...facts.map(([name, shown]) => element("div", {}, element("dt", {}, name), element("dd", {}, shown))));
}

/** @param {number} row */
function pathDetail(row) {
  const one = page.document.ranges[row];
  const here = ["ranges", row];
  /** @type {[string, string, string][]} */
  const figures = [["GPU time", "gpu_ns", "ns"], ["itself", "gpu_self_ns", "ns"], ["GPU idle", "idle_ns", "ns"], ["waits", "sync_ns", "ns"],
    ["host time", "wall_ns", "ns"], ["exposed communication", "exposed_comm_ns", "ns"], ["ops", "ops", "count"], ["calls", "calls", "count"], ["kind", "kind", "text"]];
  const causes = (page.document.idle.by_path ?? []).flatMap((/** @type {any} */ idle, /** @type {number} */ number) => (idle.path === one.path ? [number] : []));
  return element("div", {}, element("h3", {}, named(shortened(formatted(one.path, "path"), 200))),
    factList([
      ...figures.filter(([, key]) => one[key]).map(([name, key, format]) => /** @type {[string, Child]} */ ([name, field([...here, key], format)])),
      ...(one.lines ?? []).slice(0, 3).map((/** @type {any} */ line, /** @type {number} */ number) => /** @type {[string, Child]} */ ([words(line.role), field([...here, "lines", number, "source"], "text")])),
      ...causes.slice(0, 5).map((/** @type {number} */ number) => /** @type {[string, Child]} */ ([`idle here: ${words(at(["idle", "by_path", number, "cause"]))}`, field(["idle", "by_path", number, "ns"], "ns")])),
    ]));
}

/** @param {number} number */
function kernelDetail(number) {
  const here = kernelPlace(number);
  /** @type {[string, string, string][]} */
  const figures = [["GPU time", "gpu_ns", "ns"], ["launches", "ops", "count"], ["longest", "longest_ns", "ns"], ["bytes", "bytes", "bytes"], ["family", "family", "text"],
    ["precision", "precision", "text"], ["tensor cores", "tensor_cores", "text"], ["occupancy", "occupancy", "share"], ["waves", "waves", "count"], ["limited by", "limiter", "text"]];
  const path = rowOfPath.get(at([...here, "top_path"]));
  return element("div", {}, element("h3", {}, named(shortened(formatted(at([...here, "short_name"]) ?? at([...here, "name"]), "text"), 160))),
    element("p", { class: "full-name name" }, shortened(formatted(at([...here, "name"]), "text"), 400)),
    factList([
      ...figures.filter(([, key]) => hasValue(at([...here, key]))).map(([name, key, format]) => /** @type {[string, Child]} */ ([name, field([...here, key], format)])),
      ...(path === undefined ? [] : [/** @type {[string, Child]} */ (["mostly in", link(field([...here, "top_path"], "path"), () => state.set({ select: `path:${path}` }))])]),
    ]));
}

/** @param {number} slice */
function sliceDetail(slice) {
  const { start, path, kernel, call } = /** @type {Events} */ (page.events);
  const step = timelineView?.spans[timelineView.step]?.[0] ?? 0;
  const inStep = step ? "since the step began" : "since the capture began";
  /** @type {[string, Child][]} */
  const facts = [[inStep, element("span", { class: "event" }, formatted(start[slice] - step, "ns"))]];
  if (path[slice] >= 0) facts.push(["path", link(named(shortened(formatted(page.document.ranges[path[slice]].path, "path"), 160)), () => state.set({ select: `path:${path[slice]}` }))]);
  if (kernel[slice] >= 0) facts.push(["all launches", link(field([...kernelPlace(kernel[slice]), "ops"], "count"), () => state.set({ select: `kernel:${kernel[slice]}` }))]);
  if (call[slice] >= 0) facts.push(["launched by", link(element("span", {}, ...sliceSummary(call[slice]).slice(0, 2)), () => state.set({ select: `slice:${call[slice]}` }))]);
  return element("div", {}, element("h3", {}, ...sliceSummary(slice).slice(0, 2)), factList(facts),
    link("Zoom to it", () => timelineView?.zoomTo(slice), { class: "link zoom-to" }));
}

/** @param {string} cause */
function causeDetail(cause) {
  return element("div", {}, element("h3", {}, `GPU idle: ${words(cause)}`),
    factList([["in the whole window", field(["idle", "causes", cause], "ns")]]));
}

start();
