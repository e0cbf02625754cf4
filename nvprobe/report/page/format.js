// Numbers as people read them: three digits and a unit. Nothing here computes a figure.

/** What stands where a number is not known. */
const UNKNOWN = "–";

/**
 * A number as the document has it: beyond 2^53 it is the text of its digits.
 * @typedef {number | string | null | undefined} Figure
 */

const TIME_UNITS = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
const SIZE_UNITS = [["B", 1], ["KiB", 1024], ["MiB", 1024 ** 2], ["GiB", 1024 ** 3], ["TiB", 1024 ** 4]];

/**
 * Three digits: 1.23, 12.3, 123; whole numbers keep all of theirs.
 * @param {number} value
 */
function digits(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return String(value);
  if (size >= 99.95) return grouped(Math.round(value));
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

/**
 * 1234567 as 1,234,567.
 * @param {number | bigint} value
 */
function grouped(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/**
 * @param {number} value
 * @param {(string | number)[][]} units
 */
function inUnits(value, units) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  let chosen = units[0];
  // What would round up to the next unit's 1 is shown in that unit.
  for (const unit of units) if (size >= Number(unit[1]) * 0.9995) chosen = unit;
  return `${digits(value / Number(chosen[1]))} ${chosen[0]}`;
}

/** How a field is shown, by the name of its format. */
const FORMATS = {
  /** @param {number} value */
  ns: (value) => inUnits(value, TIME_UNITS),
  /** @param {number} value */
  bytes: (value) => inUnits(value, SIZE_UNITS),
  /** @param {number} value */
  count: (value) => (Number.isInteger(value) ? grouped(value) : digits(value)),
  /** @param {number} value in percent */
  percent: (value) => `${Number(value.toFixed(1))}%`,
  /** @param {number} value from 0 to 1 */
  share: (value) => `${Number((value * 100).toFixed(1))}%`,
  /** @param {number} value */
  plain: (value) => String(value),
};

/**
 * @param {Figure | boolean | string[]} value
 * @param {string} format a name in FORMATS, "text", or "path": without what escapes a slash in a name
 * @returns {string}
 */
function formatted(value, format) {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return visible(value.join(", "));
  if (format === "text") return visible(String(value));
  if (format === "path") return visible(String(value).replaceAll("\\/", "/"));
  if (typeof value === "string" && format === "count") return grouped(BigInt(value));
  return FORMATS[/** @type {keyof typeof FORMATS} */ (format)](Number(value));
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;

/**
 * Control characters, and those that turn text around, as escapes: names come from the capture.
 * @param {string} text
 */
function visible(text) {
  return text.replace(HIDDEN, (one) => {
    const code = one.codePointAt(0) ?? 0;
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/**
 * The middle of a text gives way: what tells names apart stands at their ends.
 * @param {string} text
 * @param {number} most characters
 */
function shortened(text, most) {
  if (text.length <= most) return text;
  const tail = Math.floor((most - 1) * 0.6);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}

/**
 * Words as people write them: device_wait as "device wait".
 * @param {string} name
 */
function words(name) {
  return name.replaceAll("_", " ");
}
