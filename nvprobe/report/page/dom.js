// Elements are made here and nowhere else. Texts become text nodes, never markup.

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes] `on…` takes a listener; null and false leave one out
 * @param {...Child} children
 * @returns {HTMLElement}
 */
function element(tag, attributes = {}, ...children) {
  return /** @type {HTMLElement} */ (filled(document.createElement(tag), attributes, children));
}

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {...Child} children
 * @returns {SVGElement}
 */
function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return /** @type {SVGElement} */ (filled(made, attributes, children));
}

/**
 * @param {Element} made
 * @param {Record<string, unknown>} attributes
 * @param {Child[]} children
 */
function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) made.append(child);
  return made;
}

/** @param {string} id */
function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * A value of the document, and from which field it comes: every figure of the page is made here.
 * @param {(string | number)[]} place keys from the document down
 * @param {string} format
 * @param {string} [className]
 */
function field(place, format, className) {
  const value = at(place);
  const made = element("span", { "data-field": pointer(place), "data-format": format, class: className });
  made.textContent = formatted(value, format);
  if (format === "ns" && typeof value === "number" && Math.abs(value) >= 1000) made.title = `${grouped(value)} ns`;
  return made;
}

/**
 * The value at a place of the document, undefined where something on the way is absent.
 * @param {(string | number)[]} place
 */
function at(place) {
  /** @type {any} */
  let value = page.document;
  for (const key of place) value = value?.[key];
  return value;
}

/**
 * The place as the complete document has it: lists that were cut know which rows they kept.
 * @param {(string | number)[]} place
 */
function pointer(place) {
  /** @type {string[]} */
  const names = [];
  return place
    .map((key) => {
      if (typeof key !== "number") {
        names.push(key);
        return key.replaceAll("~", "~0").replaceAll("/", "~1");
      }
      return page.about.rows[names.join(".")]?.[key] ?? key;
    })
    .map((key) => `/${key}`)
    .join("");
}

/**
 * How many rows a list has, as the complete document has it.
 * @param {string} name
 * @param {number} size of the list here
 */
function rowsOf(name, size) {
  return element("span", { "data-rows": name, class: "rows-of" }, grouped(size));
}

/**
 * A name of the capture, as text.
 * @param {string} text
 */
function named(text) {
  return element("span", { class: "name" }, text);
}

/**
 * A button that looks like the text it holds.
 * @param {Child} text
 * @param {() => void} act
 * @param {Record<string, unknown>} [attributes]
 */
function link(text, act, attributes = {}) {
  return element("button", { type: "button", class: "link", onclick: act, ...attributes }, text);
}

/** @param {string} name @param {string} color */
function legendEntry(name, color) {
  const box = element("i", { "aria-hidden": "true" });
  box.style.background = color;
  return element("span", { class: "key name" }, box, name);
}

/** @param {(Node | string)[]} content @param {MouseEvent} event */
function showTip(content, event) {
  const tip = byId("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 12))}px`;
  const below = event.clientY + 18;
  tip.style.top = `${below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 12 : below}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}
