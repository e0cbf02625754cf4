// One frame of the timeline. It draws no more slices than there are pixels.

const MARGIN = 156;
const AXIS = 26;
const NAMED_FROM = 26;
const MOST_LINKS = 400;
const SHORTEST_CUT = 9; // a name cut to less says nothing

/**
 * What a frame shows.
 * @typedef {object} Frame
 * @property {number} width in CSS pixels
 * @property {number} height
 * @property {number} scroll pixels of tracks above the frame
 * @property {number} from ns at the left edge
 * @property {number} to
 * @property {number} zero what the axis counts from
 * @property {Set<number> | null} marked slices that stand out; null: all are alike
 * @property {number} focus slice with the keyboard's focus, -1 for none
 * @property {number} hover
 */

class Painter {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Band[]} bands
   */
  constructor(canvas, bands) {
    this.canvas = canvas;
    this.bands = bands;
    this.spans = stepSpans();
    this.paint = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    /** @type {(Band | undefined)[]} */
    this.bandOfRow = [];
    for (const band of bands) if (band.row >= 0) this.bandOfRow[band.row] = band;
    /** Slices drawn in the last frame. */
    this.drawn = 0;
    this.frame = /** @type {Frame} */ ({ width: 0, height: 0, scroll: 0, from: 0, to: 1, zero: 0, marked: null, focus: -1, hover: -1 });
    this.pixel = 1; // ns
    this.ink = this.faint = this.line = this.ground = this.shade = this.accent = this.font = "";
    this.readTheme();
  }

  /** Colors come from the style sheet, so that both themes are in one place. */
  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    this.ink = read("--ink");
    this.faint = read("--faint");
    this.line = read("--line");
    this.ground = read("--panel");
    this.shade = read("--shade");
    this.accent = read("--accent");
    this.font = read("--font");
  }

  /** @param {Frame} frame */
  draw(frame) {
    const { paint, canvas } = this;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(frame.width * scale);
    canvas.height = Math.round(frame.height * scale);
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    paint.fillStyle = this.ground;
    paint.fillRect(0, 0, frame.width, frame.height);
    this.frame = frame;
    this.pixel = (frame.to - frame.from) / (frame.width - MARGIN);
    this.drawn = 0;
    this.stripes();
    paint.save();
    paint.beginPath();
    paint.rect(MARGIN, AXIS, frame.width - MARGIN, frame.height - AXIS);
    paint.clip();
    for (const band of this.visibleBands()) this.band(band);
    this.links();
    paint.restore();
    this.labels();
    this.axis();
  }

  visibleBands() {
    const { scroll, height } = this.frame;
    return this.bands.filter((band) => band.top + band.height >= scroll && band.top <= scroll + height - AXIS);
  }

  /** @param {number} time */
  x(time) {
    return MARGIN + (time - this.frame.from) / this.pixel;
  }

  /** @param {Band} band */
  y(band) {
    return AXIS + band.top - this.frame.scroll;
  }

  /** Steps as bands behind everything, every second one shaded. */
  stripes() {
    const { paint, frame } = this;
    this.spans.forEach(([start, end], row) => {
      if (end < frame.from || start > frame.to || row % 2) return;
      const left = Math.max(MARGIN, this.x(start));
      paint.fillStyle = this.shade;
      paint.fillRect(left, AXIS, Math.min(frame.width, this.x(end)) - left, frame.height - AXIS);
    });
  }

  /** @param {Band} band */
  band(band) {
    if (band.kind === "row") this.row(band);
    else if (band.kind === "counter") this.counter(band);
  }

  /** @param {Band} band */
  row(band) {
    const { frame, pixel } = this;
    const colors = COLOR_LISTS[page.about.timeline.tracks[band.track].kind];
    const events = /** @type {Events} */ (page.events);
    if (this.bandOfRow[band.row - 1]?.track !== band.track) this.use(band);
    this.drawn += drawRow(events, band.row, frame.from, frame.to, pixel, (slice, start, end, share) => {
      const left = Math.max(this.x(start), MARGIN - 2);
      const width = Math.max(Math.min(this.x(end), frame.width + 2) - left, 1);
      this.slice(band, slice, left, width, colors[events.color[slice]], share);
    });
  }

  /**
   * @param {Band} band
   * @param {number} slice
   * @param {number} left
   * @param {number} width
   * @param {string} color
   * @param {number} share
   */
  slice(band, slice, left, width, color, share) {
    const { paint, frame } = this;
    const y = this.y(band);
    const dimmed = frame.marked && !frame.marked.has(slice);
    paint.globalAlpha = (dimmed ? 0.22 : 1) * (0.35 + 0.65 * share);
    paint.fillStyle = color;
    // A hairline of ground keeps neighbors of one color apart.
    paint.fillRect(left, y + 1, width > 3 ? width - 1 : width, band.height - 2);
    paint.globalAlpha = 1;
    if (slice === frame.focus || slice === frame.hover) {
      paint.strokeStyle = slice === frame.focus ? this.accent : this.ink;
      paint.lineWidth = slice === frame.focus ? 2 : 1;
      paint.strokeRect(left + 0.5, y + 1.5, Math.max(width - 2, 1), band.height - 3);
    }
    if (width < NAMED_FROM || band.height < 14) return;
    paint.fillStyle = dimmed ? this.faint : inkOn(color);
    paint.font = `11px ${this.font}`;
    paint.textBaseline = "middle";
    const text = fitting(paint, sliceName(slice), width - 8);
    if (text) paint.fillText(text, left + 4, y + band.height / 2 + 0.5);
  }

  /**
   * Where the page has no events: how much the track was in use.
   * @param {Band} band
   */
  use(band) {
    const { windows, length_ns: length, bins } = page.about.timeline;
    if (windows.length === 1 && windows[0][1] - windows[0][0] >= length) return;
    const { paint, frame } = this;
    const events = /** @type {Events} */ (page.events);
    const size = length / bins;
    const first = Math.max(0, Math.floor(frame.from / size));
    const last = Math.min(bins, Math.ceil(frame.to / size));
    paint.save();
    paint.beginPath();
    paint.rect(0, 0, frame.width, frame.height);
    for (const [start, end] of windows) paint.rect(this.x(start), 0, (end - start) / this.pixel, frame.height);
    paint.clip("evenodd");
    paint.fillStyle = this.faint;
    for (let bin = first; bin < last; bin++) {
      const start = bin * size;
      const share = events.use[band.track * bins + bin] / 255;
      if (!share) continue;
      const tall = Math.max(1, (band.height - 4) * share);
      paint.globalAlpha = 0.45;
      paint.fillRect(this.x(start), this.y(band) + band.height - 2 - tall, Math.max(1, size / this.pixel), tall);
    }
    paint.restore();
  }

  /**
   * A counter as steps; of many samples in a pixel the highest is drawn.
   * @param {Band} band
   */
  counter(band) {
    const { paint, frame, pixel } = this;
    const { time, value, most } = counterColumns(band.counter);
    const y = this.y(band) + 2;
    const tall = band.height - 4;
    paint.fillStyle = PALETTE.blue;
    paint.globalAlpha = 0.55;
    let at = Math.max(0, firstAbove(time, frame.from, 0, time.length) - 1);
    while (at < time.length - 1 && time[at] < frame.to) {
      const next = Math.max(at + 1, firstAbove(time, time[at] + pixel, at, time.length) - 1);
      let highest = value[at];
      for (let one = at + 1; one < next; one++) highest = Math.max(highest, value[one]);
      const left = Math.max(this.x(time[at]), MARGIN);
      const right = Math.min(this.x(time[Math.min(next, time.length - 1)]), frame.width);
      const size = most ? (highest / most) * tall : 0;
      paint.fillRect(left, y + tall - size, Math.max(right - left, 1), size);
      at = next;
      this.drawn++;
    }
    paint.globalAlpha = 1;
  }

  /** From calls to the ops that they launched: the chosen ones, or all where they are few. */
  links() {
    const { paint, frame } = this;
    const events = /** @type {Events} */ (page.events);
    const ops = this.linkedOps();
    paint.strokeStyle = frame.marked ? this.accent : this.faint;
    paint.lineWidth = 1;
    paint.globalAlpha = frame.marked ? 0.6 : 0.35;
    for (const slice of ops) {
      const call = events.call[slice];
      const [above, below] = [this.bandOfRow[rowOf(call)], this.bandOfRow[rowOf(slice)]];
      if (!above || !below) continue;
      const [x0, y0] = [this.x((events.start[call] + events.end[call]) / 2), this.y(above) + above.height - 1];
      const [x1, y1] = [this.x(events.start[slice]), this.y(below) + 1];
      paint.beginPath();
      paint.moveTo(x0, y0);
      paint.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
      paint.stroke();
    }
    paint.globalAlpha = 1;
  }

  linkedOps() {
    const { frame } = this;
    const { call, first, start, end } = /** @type {Events} */ (page.events);
    if (frame.marked) return [...frame.marked].filter((slice) => call[slice] >= 0).slice(0, MOST_LINKS);
    const seen = [];
    for (const band of this.bands) {
      if (band.row < 0 || page.about.timeline.tracks[band.track].kind !== "stream") continue;
      for (let slice = firstAbove(end, frame.from, first[band.row], first[band.row + 1]);
        slice < first[band.row + 1] && start[slice] < frame.to; slice++) {
        if (call[slice] >= 0) seen.push(slice);
        if (seen.length > MOST_LINKS / 4) return [];
      }
    }
    return seen;
  }

  /** The margin: what each track is. */
  labels() {
    const { paint, frame } = this;
    paint.fillStyle = this.ground;
    paint.fillRect(0, AXIS, MARGIN - 1, frame.height - AXIS);
    paint.fillStyle = this.line;
    paint.fillRect(MARGIN - 1, AXIS, 1, frame.height - AXIS);
    paint.textBaseline = "middle";
    for (const band of this.visibleBands()) {
      const y = this.y(band);
      if (band.kind === "heading") {
        paint.font = `600 12px ${this.font}`;
        const text = fitting(paint, visible(band.label), frame.width / 2);
        paint.fillStyle = this.ground;
        paint.fillRect(0, y, Math.max(MARGIN - 1, paint.measureText(text).width + 20), band.height);
        paint.fillStyle = this.line;
        if (band.top > 0) paint.fillRect(0, y + 2, frame.width, 1);
        paint.fillStyle = this.ink;
        paint.fillText(text, 10, y + band.height / 2 + 2);
      } else if (band.label) {
        paint.font = `11px ${this.font}`;
        paint.fillStyle = this.faint;
        paint.fillText(fitting(paint, visible(band.label), MARGIN - 20), 10, y + Math.min(band.height, 18) / 2);
        if (band.kind === "counter") paint.fillText(fitting(paint, counterScale(band.counter), MARGIN - 20), 10, y + 25);
      }
    }
  }

  /** The time axis, which counts from the begin of the step. */
  axis() {
    const { paint, frame, pixel } = this;
    paint.fillStyle = this.ground;
    paint.fillRect(0, 0, frame.width, AXIS);
    paint.fillStyle = this.line;
    paint.fillRect(0, AXIS - 1, frame.width, 1);
    paint.font = `11px ${this.font}`;
    paint.textBaseline = "middle";
    const step = roundStep(pixel * 110);
    for (let tick = Math.ceil((frame.from - frame.zero) / step) * step; tick + frame.zero < frame.to; tick += step) {
      const x = Math.round(this.x(tick + frame.zero));
      paint.fillStyle = this.line;
      paint.fillRect(x, AXIS - 6, 1, 6);
      paint.globalAlpha = 0.5;
      paint.fillRect(x, AXIS, 1, frame.height - AXIS);
      paint.globalAlpha = 1;
      paint.fillStyle = this.faint;
      const text = axisTime(tick, step);
      if (x + paint.measureText(text).width + 6 < frame.width) paint.fillText(text, x + 4, AXIS / 2);
    }
  }
}

/** @param {number} slice */
function rowOf(slice) {
  const { first } = /** @type {Events} */ (page.events);
  return firstAbove(first, slice, 0, first.length) - 1;
}

/** @param {number} slice */
function sliceName(slice) {
  const { name } = /** @type {Events} */ (page.events);
  return visible(page.about.timeline.names[name[slice]]);
}

/** @type {{time: Float64Array, value: ArrayLike<number>, most: number}[]} */
const counters = [];

/** @param {number} number */
function counterColumns(number) {
  if (!counters[number]) {
    const { columns } = /** @type {Events} */ (page.events);
    const value = columns[`v${number}`];
    let most = page.about.timeline.counters[number].unit.includes("%") ? 100 : 0;
    for (let at = 0; at < value.length; at++) most = Math.max(most, value[at]);
    const steps = columns[`t${number}`];
    counters[number] = { time: summed(steps, Uint32Array.of(0, steps.length)), value, most };
  }
  return counters[number];
}

/**
 * What the full height of a counter stands for.
 * @param {number} number
 */
function counterScale(number) {
  const { unit } = page.about.timeline.counters[number];
  const { most } = counterColumns(number);
  return `to ${unit === "bytes" ? formatted(most, "bytes") : `${digits(most)} ${unit.replace("Throughput ", "")}`}`;
}

/**
 * 1, 2 or 5 times a power of ten, at least `least`.
 * @param {number} least
 */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  for (const factor of [1, 2, 5]) if (factor * power >= least) return factor * power;
  return 10 * power;
}

/**
 * @param {number} time
 * @param {number} step between two ticks
 */
function axisTime(time, step) {
  const size = Math.max(Math.abs(time), step);
  const [unit, ns] = TIME_UNITS.filter((one) => size >= Number(one[1])).pop() ?? TIME_UNITS[0];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / Number(ns)) - 1e-9));
  return `${(time / Number(ns)).toFixed(decimals)} ${unit}`;
}

/** @type {Map<string, string>} */
const inks = new Map();

/**
 * Black or white, whichever reads better on a color.
 * @param {string} color
 */
function inkOn(color) {
  let ink = inks.get(color);
  if (!ink) {
    const [r, g, b] = [1, 3, 5].map((at) => (parseInt(color.slice(at, at + 2), 16) / 255) ** 2.2);
    ink = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#101418" : "#ffffff";
    inks.set(color, ink);
  }
  return ink;
}

/** @type {Map<string, number>} width of a character by font */
const widths = new Map();

/**
 * As much of a text as fits, its middle giving way; nothing if hardly any does.
 * @param {CanvasRenderingContext2D} paint
 * @param {string} text
 * @param {number} width
 */
function fitting(paint, text, width) {
  let each = widths.get(paint.font);
  if (!each) widths.set(paint.font, (each = paint.measureText("abcdefghij_klm.012").width / 18));
  let most = Math.floor(width / each);
  let cut = shortened(text, Math.max(most, 1));
  while (most > 3 && paint.measureText(cut).width > width) cut = shortened(text, --most);
  return most < Math.min(text.length, SHORTEST_CUT) ? "" : cut;
}
