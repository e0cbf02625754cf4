// Instant search over paths, kernels, lines and findings.

const MOST_HITS = 12;

/** @typedef {{kind: string, text: string, low: string, view: Record<string, string>}} Hit */

class Search {
  /** @param {(found: Set<number> | null) => void} highlight rows of paths that match */
  constructor(highlight) {
    this.highlight = highlight;
    this.input = /** @type {HTMLInputElement} */ (byId("search"));
    this.list = byId("hits");
    this.entries = searchable();
    this.active = -1;
    /** @type {Hit[]} */
    this.hits = [];
    this.input.addEventListener("input", () => this.find());
    this.input.addEventListener("focus", () => this.input.value && this.find());
    this.input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    this.input.addEventListener("keydown", (event) => this.key(event));
    addEventListener("keydown", (event) => this.shortcut(event));
  }

  /** @param {KeyboardEvent} event */
  shortcut(event) {
    const inField = /INPUT|SELECT|TEXTAREA/.test(/** @type {HTMLElement} */ (event.target).tagName ?? "");
    if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.input.focus();
    }
    if (event.key === "Escape" && !inField) state.set({ select: null });
  }

  find() {
    const wanted = this.input.value.trim().toLowerCase();
    this.active = -1;
    if (!wanted) {
      this.highlight(null);
      return this.close();
    }
    const found = this.entries.filter((one) => one.low.includes(wanted));
    this.highlight(new Set(found.filter((one) => one.kind === "path").map((one) => Number(one.view.select.slice(5)))));
    this.hits = found.slice(0, MOST_HITS);
    this.list.replaceChildren(
      ...this.hits.map((hit, number) => element("li", { role: "option", id: `hit-${number}`, "aria-selected": "false", onpointerdown: () => this.choose(hit) },
        element("span", { class: "hit-kind" }, hit.kind), named(shortened(visible(hit.text), 110)))),
      ...(found.length ? [] : [element("li", { class: "nothing" }, "Nothing has that in its name.")]));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
  }

  /** @param {Hit} hit */
  choose(hit) {
    state.set(hit.view);
    this.close();
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { hits } = this;
    if (event.key === "Escape") {
      this.input.value = "";
      this.find();
      this.input.blur();
    }
    if (event.key === "Enter" && hits.length && this.input.value.trim()) this.choose(hits[Math.max(this.active, 0)]);
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    this.active = Math.min(Math.max(this.active + (event.key === "ArrowDown" ? 1 : -1), 0), hits.length - 1);
    [...this.list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === this.active)));
    this.input.setAttribute("aria-activedescendant", `hit-${this.active}`);
  }
}

/** @returns {Hit[]} */
function searchable() {
  const { ranges, kernels, copies, findings } = page.document;
  /** @type {Hit[]} */
  const found = [];
  const add = (/** @type {string} */ kind, /** @type {string | null} */ text, /** @type {Record<string, string>} */ view) => {
    if (text) found.push({ kind, text, low: text.toLowerCase(), view });
  };
  (findings ?? []).forEach((/** @type {any} */ one, /** @type {number} */ row) =>
    add("finding", [one.title, ...one.sources].join(" · "), { section: `finding-${row}`, ...(rowOfPath.has(one.path) ? { select: `path:${rowOfPath.get(one.path)}` } : {}) }));
  ranges.forEach((/** @type {any} */ one, /** @type {number} */ row) =>
    add("path", [one.path, ...(one.lines ?? []).map((/** @type {any} */ line) => line.source)].join("  "), { select: `path:${row}` }));
  [...kernels, ...copies].forEach((/** @type {any} */ one, row) => add("kernel", one.short_name ?? one.name, { select: `kernel:${row}` }));
  return found;
}
