// A table of one list of the document: sorted by any column, filtered by text, shown in parts.

const ROWS_AT_FIRST = 15;

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {string[]} key from the row down to the value
 * @property {string} format
 * @property {boolean} [bar] whether its share of the greatest is drawn behind it
 * @property {number} [most] characters that are shown
 * @property {boolean} [wraps] a text of several words
 * @property {number} [greatest] of all rows, once it is known
 */

/** @param {Column} column */
const isText = (column) => column.format === "text" || column.format === "path";

class Table {
  /**
   * @param {string[]} list where the rows stand in the document
   * @param {Column[]} columns those without any value are left out
   * @param {object} options
   * @param {string} [options.sort] key of the column that it is sorted by at first; else as it comes
   * @param {(row: number) => string | null} [options.target] what selecting a row selects
   */
  constructor(list, columns, { sort, target }) {
    this.list = list;
    this.rows = at(list) ?? [];
    this.columns = columns.filter((column) => this.rows.some((/** @type {any} */ row) => hasValue(value(row, column))));
    this.target = target ?? (() => null);
    this.sorted = sort ?? "";
    this.falling = true;
    this.shown = ROWS_AT_FIRST;
    this.body = element("tbody");
    this.head = element("tr");
    this.more = element("div", { class: "more" });
    const table = element("table", {}, element("thead", {}, this.head), this.body);
    this.element = element("div", { class: "table" }, element("div", { class: "table-scroller", tabindex: 0 }, table), this.more);
    this.fill();
    state.listen((changed) => changed.has("select") && this.mark());
  }

  fill() {
    this.head.replaceChildren(...this.columns.map((column) => this.heading(column)));
    const order = this.order();
    this.body.replaceChildren(...order.slice(0, this.shown).map((/** @type {number} */ row) => this.line(row)));
    const left = order.length - this.shown;
    this.more.replaceChildren(...(left > 0
      ? [link("Show more", () => this.grow(order.length)), " of ", rowsOf(this.list.join("."), fullSize(this.list, this.rows.length))]
      : []));
    this.mark();
  }

  /** @param {number} most */
  grow(most) {
    this.shown = Math.min(most, this.shown < 100 ? 100 : this.shown + 500);
    this.fill();
  }

  order() {
    const order = this.rows.map((/** @type {any} */ _, /** @type {number} */ row) => row);
    const column = this.columns.find((one) => one.key.join(".") === this.sorted);
    if (!column) return order;
    const sign = this.falling ? -1 : 1;
    return order.sort((/** @type {number} */ a, /** @type {number} */ b) => sign * compared(value(this.rows[a], column), value(this.rows[b], column)) || a - b);
  }

  /** @param {Column} column */
  heading(column) {
    const key = column.key.join(".");
    const by = this.sorted === key;
    const act = () => {
      this.falling = by ? !this.falling : !isText(column);
      this.sorted = key;
      this.fill();
      /** @type {HTMLElement | null} */ (this.head.querySelector(`[data-key="${CSS.escape(key)}"]`))?.focus();
    };
    return element("th", { class: isText(column) ? "text" : "figure", scope: "col",
      "aria-sort": by ? (this.falling ? "descending" : "ascending") : "none" },
      element("button", { type: "button", "data-key": key, onclick: act }, column.title,
        element("span", { "aria-hidden": "true", class: "arrow" }, by ? (this.falling ? "↓" : "↑") : "")));
  }

  /** @param {number} row */
  line(row) {
    const target = this.target(row);
    const cells = this.columns.map((column, number) => this.cell(row, column, number === this.nameColumn ? target : null));
    return element("tr", { "data-target": target, onclick: target && (() => state.set({ select: target })) }, ...cells);
  }

  get nameColumn() {
    return this.columns.findIndex(isText);
  }

  /**
   * @param {number} row
   * @param {Column} column
   * @param {string | null} target
   */
  cell(row, column, target) {
    const shown = field([...this.list, row, ...column.key], column.format);
    if (isText(column)) {
      const full = shown.textContent ?? "";
      const most = column.most ?? 60;
      if (full.length > most) {
        shown.title = shortened(full, 600);
        shown.textContent = shortened(full, most);
      }
      return element("td", { class: column.wraps ? "text wraps" : "text" }, target ? link(shown, () => state.set({ select: target })) : shown);
    }
    const cell = element("td", { class: "figure" }, shown);
    if (column.bar) {
      const most = column.greatest ??= Math.max(...this.rows.map((/** @type {any} */ one) => Number(value(one, column)) || 0));
      const share = most > 0 ? Number(value(this.rows[row], column)) / most : 0;
      cell.classList.add("barred");
      cell.style.setProperty("--share", String(share));
    }
    return cell;
  }

  mark() {
    const selected = state.get("select");
    for (const line of this.body.children) {
      line.classList.toggle("selected", Boolean(selected) && line.getAttribute("data-target") === selected);
    }
  }
}

/** @param {any} row @param {Column} column */
function value(row, column) {
  let found = row;
  for (const key of column.key) found = found?.[key];
  return Array.isArray(found) ? found.join(", ") : found;
}

/** @param {unknown} found */
function hasValue(found) {
  return found !== null && found !== undefined && found !== "" && found !== 0 && found !== false;
}

/** @param {any} a @param {any} b */
function compared(a, b) {
  const known = [a, b].map((one) => one !== null && one !== undefined);
  if (!known[0] || !known[1]) return Number(known[0]) - Number(known[1]);
  return typeof a === "string" && typeof b === "string" ? (a < b ? -1 : Number(a > b)) : Number(a) - Number(b);
}

/** @param {string[]} list @param {number} size */
function fullSize(list, size) {
  return page.about.sizes[list.join(".")] ?? size;
}
