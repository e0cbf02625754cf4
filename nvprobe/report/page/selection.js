// What a selection is about on the timeline: ranges with their ops, ops with their calls and ranges.

/**
 * Which slices the selection is about; null where nothing is selected.
 * @returns {Set<number> | null}
 */
function markedSlices() {
  const { kind, id, row } = state.selected;
  const events = page.events;
  if (!events || !kind) return null;
  if (kind === "slice") return row < events.start.length ? related(row) : null;
  if (kind === "path") {
    const below = pathsBelow(row);
    return slicesWhere((slice) => below[events.path[slice]] === 1);
  }
  if (kind === "kernel") return withCalls(slicesWhere((slice) => events.kernel[slice] === row));
  if (kind === "cause") {
    const number = page.about.timeline.colors.idle.indexOf(id);
    return slicesWhere((slice) => events.color[slice] === number && trackOf(slice).kind === "idle");
  }
  return null;
}

/** @param {(slice: number) => boolean} wanted */
function slicesWhere(wanted) {
  const found = new Set();
  const { start } = /** @type {Events} */ (page.events);
  for (let slice = 0; slice < start.length; slice++) if (wanted(slice)) found.add(slice);
  return found;
}

/** @param {number} slice @returns {Track} */
function trackOf(slice) {
  const about = page.about.timeline;
  return about.tracks[about.rows[rowOf(slice)][0]];
}

/** @param {Set<number>} ops their calls stand out with them */
function withCalls(ops) {
  const { call } = /** @type {Events} */ (page.events);
  return new Set([...ops, ...[...ops].map((slice) => call[slice]).filter((one) => one >= 0)]);
}

/**
 * A range with the calls and ops that belong to it; an op with its call and ranges; a call with its ops.
 * @param {number} slice
 */
function related(slice) {
  const events = /** @type {Events} */ (page.events);
  const track = trackOf(slice);
  const found = new Set([slice]);
  if (track.kind === "stream") {
    if (events.call[slice] >= 0) found.add(events.call[slice]);
    const time = events.call[slice] >= 0 ? events.start[events.call[slice]] : events.start[slice];
    const host = events.call[slice] >= 0 ? trackOf(events.call[slice]) : null;
    if (host) for (const one of openRanges(host, time)) found.add(one);
  }
  if (track.kind === "calls") for (const one of slicesWhere((op) => events.call[op] === slice)) found.add(one);
  if (track.kind === "ranges") for (const one of launchedIn(slice, track)) found.add(one);
  return found;
}

/**
 * The ops whose calls begin in a range on its thread; on the thread that runs the steps, those of
 * the autograd threads count, too.
 * @param {number} range
 * @param {Track} track
 */
function launchedIn(range, track) {
  const { start, end, call } = /** @type {Events} */ (page.events);
  const tracks = page.about.timeline.tracks;
  const ours = (/** @type {Track} */ one) => one.process === track.process
    && (one.number === track.number || (track.role === "initiating" && one.role === "autograd"));
  const wanted = tracks.map(ours);
  const rows = page.about.timeline.rows;
  return withCalls(slicesWhere((slice) => {
    const by = call[slice];
    return by >= 0 && start[by] >= start[range] && start[by] < end[range] && wanted[rows[rowOf(by)][0]];
  }));
}

/**
 * The ranges open on a thread at a time.
 * @param {Track} host a track of the thread
 * @param {number} time
 */
function openRanges(host, time) {
  const { rows, tracks } = page.about.timeline;
  /** @type {number[]} */
  const found = [];
  rows.forEach((/** @type {number[]} */ [track], /** @type {number} */ row) => {
    const one = tracks[track];
    if (one.kind !== "ranges" || one.process !== host.process || one.number !== host.number) return;
    const slice = sliceAt(/** @type {Events} */ (page.events), row, time, 0);
    if (slice >= 0) found.push(slice);
  });
  return found;
}

/**
 * What a slice is, in a few words. Times of single events are those of the event tables.
 * @param {number} slice
 */
function sliceSummary(slice) {
  const { start, end, path } = /** @type {Events} */ (page.events);
  const track = trackOf(slice);
  const what = { ranges: "range", spans: "span", calls: "CUDA call", stream: "GPU", idle: "GPU idle" }[track.kind];
  const place = track.kind === "stream" ? track.title : track.kind === "idle" ? "" : `thread ${track.number}`;
  return [
    element("b", { class: "name" }, shortened(track.kind === "idle" ? words(sliceName(slice)) : sliceName(slice), 120)),
    element("span", { class: "event" }, ` ${formatted(end[slice] - start[slice], "ns")} · ${what} ${place}`),
    path[slice] >= 0 && track.kind !== "ranges"
      ? element("span", { class: "where name" }, shortened(formatted(page.document.ranges[path[slice]].path, "path"), 140)) : "",
  ];
}
