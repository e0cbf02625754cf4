// Where each track of the timeline lies, and in which colors.

/**
 * A band of the timeline: one lane of a track, a heading, or a counter.
 * @typedef {object} Band
 * @property {"heading" | "row" | "counter"} kind
 * @property {number} top
 * @property {number} height
 * @property {string} label in the margin, on the first lane of a track
 * @property {number} track -1 where there is none
 * @property {number} row of the events
 * @property {number} counter its number
 */

/** @type {Record<string, number>} height of a lane by kind of track */
const LANE_HEIGHTS = { ranges: 18, spans: 14, calls: 12, stream: 20, idle: 16, heading: 24, counter: 34 };
const TRACK_GAP = 5;

/** Colors that color-blind people can tell apart: those of Okabe and Ito, and tints of them. */
const PALETTE = {
  orange: "#e69f00", sky: "#56b4e9", green: "#009e73", yellow: "#f0e442",
  blue: "#0072b2", red: "#d55e00", pink: "#cc79a7", gray: "#8c8c8c", pale: "#b9c4cf",
};

/** GPU work as a whole. */
const BUSY = "#35506b";

/** Idle causes. */
const CAUSES = {
  sync: PALETTE.red, allocation: PALETTE.pink, compilation: PALETTE.yellow, collective: PALETTE.blue,
  input: PALETTE.orange, no_work: "#d9c7a0", launch_call: PALETTE.sky, other_call: PALETTE.pale, host: PALETTE.green,
  device_wait: PALETTE.gray, unknown: "#5c5c5c",
};

/** Families of kernels; related ones share a color. */
const FAMILIES = {
  gemm: PALETTE.blue, gemv: PALETTE.blue, convolution: PALETTE.blue, attention: PALETTE.green,
  softmax: PALETTE.pink, norm: PALETTE.pink, elementwise: PALETTE.sky, reduction: PALETTE.pink,
  sort: PALETTE.yellow, indexing: PALETTE.yellow, layout: "#8fb8c9", optimizer: "#7a5195",
  communication: PALETTE.red, triton: "#00b894", custom: PALETTE.gray, memcpy: PALETTE.orange,
  memset: PALETTE.pale, graph: "#7a5195",
};

/** Kinds of ranges. */
const RANGE_KINDS = {
  user: "#c9a3c9", step: "#9fb3c8", phase: "#8fc1e3", module: "#9fd3b6", graph: "#c9b3e6",
  collective: "#f0a58a", operator: "#e3d28f", library: "#cfcfcf",
};

/** What CUDA calls do. */
const CALL_KINDS = { launch: "#7f9db9", sync: PALETTE.red, allocation: PALETTE.pink, other: "#c4c4c4" };

/** @type {Record<string, Record<string, string>>} the colors of each kind of track */
const COLORS = { ranges: RANGE_KINDS, spans: { span: "#c2cf9c" }, calls: CALL_KINDS, stream: FAMILIES, idle: CAUSES };

/** @type {Record<string, string[]>} the same by the numbers that stand in the events */
const COLOR_LISTS = Object.fromEntries(Object.entries(page.about.timeline?.colors ?? {}).map(([kind, names]) =>
  [kind, names.map((/** @type {string} */ name) => COLORS[kind][name] ?? PALETTE.gray)]));

/** Stack the tracks: a heading for each process and device, their tracks, counters beneath. */
function layOut() {
  const about = page.about.timeline;
  /** @type {Band[]} */
  const bands = [];
  let top = 0;
  /** @param {Band["kind"]} kind @param {number} height @param {Partial<Band>} rest */
  const add = (kind, height, rest) => {
    bands.push({ kind, top, height, label: "", track: -1, row: -1, counter: -1, ...rest });
    top += height;
  };
  let place = "";
  about.rows.forEach((/** @type {number[]} */ [track, lane], /** @type {number} */ row) => {
    const one = about.tracks[track];
    const here = placeName(one);
    if (here !== place) add("heading", LANE_HEIGHTS.heading, { label: here });
    else if (lane === 0) top += TRACK_GAP;
    place = here;
    add("row", LANE_HEIGHTS[one.kind], { label: lane === 0 ? trackLabel(one) : "", track, row });
  });
  about.counters.forEach((/** @type {any} */ one, /** @type {number} */ counter) => {
    const here = deviceName(one.device);
    if (here !== place) add("heading", LANE_HEIGHTS.heading, { label: here });
    place = here;
    top += TRACK_GAP;
    add("counter", LANE_HEIGHTS.counter, { label: one.title, counter });
  });
  return { bands, height: top + 8 };
}

/** @param {Track} track */
function placeName(track) {
  if (track.kind === "stream" || track.kind === "idle") return deviceName(track.device);
  const process = page.document.processes.find((/** @type {any} */ one) => one.id === track.process);
  const rank = process?.rank ?? null;
  return `${process?.name ?? "process"} · pid ${track.pid}${rank === null ? "" : ` · rank ${rank}`}`;
}

/** @param {number | null} device */
function deviceName(device) {
  const known = page.document.devices.find((/** @type {any} */ one) => one.device === device);
  return `GPU ${device ?? ""}${known?.name ? ` · ${known.name}` : ""}`;
}

/** @param {Track} track */
function trackLabel(track) {
  const thread = `${track.title} ${track.number}`;
  if (track.kind === "ranges") return thread;
  if (track.kind === "spans") return "spans";
  if (track.kind !== "calls") return track.title;
  const named = page.about.timeline.tracks.some((/** @type {Track} */ one) =>
    one.kind === "ranges" && one.process === track.process && one.number === track.number);
  return named ? "CUDA calls" : thread;
}

/** What the colors mean; only colors that occur. */
function legend() {
  const events = /** @type {Events} */ (page.events);
  const { rows, tracks, colors } = page.about.timeline;
  /** @type {Record<string, Set<number>>} */
  const used = {};
  rows.forEach((/** @type {number[]} */ [track], /** @type {number} */ row) => {
    const kind = tracks[track].kind;
    used[kind] ??= new Set();
    for (let slice = events.first[row]; slice < events.first[row + 1]; slice++) used[kind].add(events.color[slice]);
  });
  const titles = { ranges: "ranges", spans: "start/end ranges", calls: "calls", stream: "GPU work", idle: "GPU idle by cause" };
  return element("div", { class: "legends" }, ...Object.entries(titles).filter(([kind]) => used[kind]).map(([kind, title]) =>
    element("div", { class: "legend" }, element("b", {}, title),
      ...COLOR_LISTS[kind].flatMap((color, number) =>
        (used[kind].has(number) ? [legendEntry(words(colors[kind][number]), color)] : [])))));
}
