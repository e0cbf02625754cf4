// Levels of detail: of a row with any number of slices, no more is drawn than it has pixels.

/**
 * First position in [low, high) whose value is greater than `value`; `high` if none is.
 * @param {ArrayLike<number>} values ascending within [low, high)
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
function firstAbove(values, value, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Slices looked at to say what a run of many in one pixel is mostly made of. */
const LOOKED_AT = 24;

/**
 * Draw what of a row lies in [from, to). Slices narrower than a pixel are drawn together with those
 * that begin in the same pixel: every call of `draw` moves on by a pixel or more.
 * @param {Events} events
 * @param {number} row
 * @param {number} from
 * @param {number} to
 * @param {number} pixel ns per pixel
 * @param {(slice: number, start: number, end: number, share: number) => void} draw
 * share: how much of the time is covered, 1 for a slice by itself
 * @returns {number} how often it drew
 */
function drawRow(events, row, from, to, pixel, draw) {
  const { start, end, first } = events;
  const last = first[row + 1];
  let slice = firstAbove(end, from, first[row], last);
  let drawn = 0;
  while (slice < last && start[slice] < to) {
    drawn++;
    if (end[slice] - start[slice] >= pixel) {
      draw(slice, start[slice], end[slice], 1);
      slice++;
      continue;
    }
    const next = firstAbove(start, start[slice] + pixel, slice, last);
    const [longest, covered] = mostOf(events, slice, next);
    const finish = Math.max(end[next - 1], start[slice] + pixel);
    draw(longest, start[slice], Math.min(finish, start[slice] + 2 * pixel), Math.min(1, covered / pixel));
    // A last one that reaches beyond the pixel is drawn again, by itself.
    slice = next - 1 > slice && end[next - 1] - start[next - 1] >= pixel ? next - 1 : next;
  }
  return drawn;
}

/**
 * The longest slice of a run, and the time that the run covers, judged by a sample of it.
 * @param {Events} events
 * @param {number} low
 * @param {number} high
 */
function mostOf(events, low, high) {
  const { start, end } = events;
  const step = Math.max(1, Math.floor((high - low) / LOOKED_AT));
  let longest = low;
  let covered = 0;
  let seen = 0;
  for (let slice = low; slice < high; slice += step, seen++) {
    const length = end[slice] - start[slice];
    covered += length;
    if (length > end[longest] - start[longest]) longest = slice;
  }
  return [longest, (covered * (high - low)) / seen];
}

/**
 * The slice of a row at a time, or within `slack` of it; -1 for none.
 * @param {Events} events
 * @param {number} row
 * @param {number} time
 * @param {number} slack
 */
function sliceAt(events, row, time, slack) {
  const { start, end, first } = events;
  const last = first[row + 1];
  const next = firstAbove(start, time, first[row], last);
  const before = next - 1;
  if (before >= first[row] && time < end[before]) return before;
  if (next < last && start[next] - time <= slack) return next;
  if (before >= first[row] && time - end[before] <= slack) return before;
  return -1;
}
