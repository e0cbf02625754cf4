// The data in the page: the analysis document, and the events as typed arrays.

/**
 * @typedef {object} Track
 * @property {"ranges" | "spans" | "calls" | "stream" | "idle"} kind
 * @property {string} title
 * @property {number} process row of the trace's processes, -1 for a device
 * @property {number | null} pid
 * @property {number | null} device physical number
 * @property {number} number thread id or stream
 * @property {"initiating" | "autograd" | "other"} role initiating: runs the steps; autograd: what it
 * launches belongs to the initiating thread, too
 */

/**
 * Slices by row and start. Times are ns since `origin_ns`, exact up to 2^53 (104 days).
 * @typedef {object} Events
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {ArrayLike<number>} name
 * @property {ArrayLike<number>} path row of the document's ranges, -1 for none
 * @property {ArrayLike<number>} kernel row of its kernels, behind which stand the copies; -1
 * @property {ArrayLike<number>} color
 * @property {ArrayLike<number>} call slice of the call that launched an op, -1
 * @property {ArrayLike<number>} use per track and bin: 0 to 255
 * @property {Uint32Array} first first slice of each row, and the number of slices
 * @property {Record<string, ArrayLike<number>>} columns all of them, by name
 */

/** @type {{document: any, about: any, events: Events | null}} */
const page = {
  document: JSON.parse(byId("document").textContent ?? ""),
  about: JSON.parse(byId("about").textContent ?? ""),
  events: null,
};

/** @type {Record<string, any>} */
const ARRAYS = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array,
  u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};

/** Unpack the events; nothing is fetched. */
async function readEvents() {
  const about = page.about.timeline;
  if (!about) return;
  const buffer = await inflated(byId("columns").textContent ?? "");
  byId("columns").remove();
  /** @type {Record<string, any>} */
  const columns = {};
  for (const [name, { type, at, size }] of Object.entries(about.columns)) {
    columns[name] = new ARRAYS[type](buffer, at, size);
  }
  const first = Uint32Array.from([...about.rows.map((/** @type {number[]} */ row) => row[2]), columns.start.length]);
  const start = summed(columns.start, first);
  const end = Float64Array.from(start, (time, slice) => time + columns.length[slice]);
  page.events = /** @type {Events} */ ({ ...columns, start, end, first, columns });
}

/**
 * base64 of raw deflate, unpacked.
 * @param {string} text
 * @returns {Promise<ArrayBuffer>}
 */
async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

/**
 * Distances from slice to slice as times, row by row.
 * @param {ArrayLike<number>} steps
 * @param {Uint32Array} first
 */
function summed(steps, first) {
  const out = new Float64Array(steps.length);
  for (let row = 0; row + 1 < first.length; row++) {
    let time = 0;
    for (let slice = first[row]; slice < first[row + 1]; slice++) out[slice] = time += steps[slice];
  }
  return out;
}

/**
 * Time of a step on the timeline; exact wherever the document's times are.
 * @param {{start_ns: number | string, end_ns: number | string}} step
 */
function spanOf(step) {
  const origin = BigInt(page.about.timeline.origin_ns);
  return [Number(BigInt(step.start_ns) - origin), Number(BigInt(step.end_ns) - origin)];
}

/** @returns {number[][]} begin and end of each step on the timeline */
function stepSpans() {
  return page.document.steps.map(spanOf);
}

/** @type {Map<string, number>} row of the ranges by path */
const rowOfPath = new Map(page.document.ranges.map((/** @type {any} */ one, /** @type {number} */ row) => [one.path, row]));

/**
 * The document's list and row of a kernel number: kernels come first, then copies.
 * @param {number} number
 * @returns {(string | number)[]}
 */
function kernelPlace(number) {
  const kernels = page.document.kernels.length;
  return number < kernels ? ["kernels", number] : ["copies", number - kernels];
}
