// What is chosen and looked at. It all stands in the URL's hash: a link leads to the same view.

/**
 * `section`, `step`, `from` and `to` (ns), `select` (path:3, kernel:0, slice:77, cause:sync),
 * `quantity` and `root` of the icicle, `table`, `sort`, `theme`.
 * @typedef {Record<string, string>} View
 */

class State {
  constructor() {
    /** @type {View} */
    this.view = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    /** @type {((changed: Set<string>) => void)[]} */
    this.listeners = [];
    this.writing = 0;
    addEventListener("hashchange", () => this.follow());
  }

  /**
   * @param {string} name
   * @returns {string | undefined}
   */
  get(name) {
    return this.view[name];
  }

  /**
   * @param {string} name
   * @param {number} fallback
   */
  number(name, fallback) {
    const value = Number(this.view[name]);
    return this.view[name] === undefined || !Number.isFinite(value) ? fallback : value;
  }

  /** What is selected, as its kind and number or name. */
  get selected() {
    const [kind, ...rest] = (this.view.select ?? "").split(":");
    const id = rest.join(":");
    return { kind, id, row: Number(id) };
  }

  /**
   * Change some of it; null takes a part away. Whoever listens hears what changed.
   * @param {Record<string, string | number | null>} changes
   */
  set(changes) {
    const changed = new Set();
    for (const [name, value] of Object.entries(changes)) {
      const text = value === null ? undefined : String(value);
      if (this.view[name] === text) continue;
      if (text === undefined) delete this.view[name];
      else this.view[name] = text;
      changed.add(name);
    }
    if (changed.size) this.announce(changed);
  }

  /** @param {Set<string>} changed */
  announce(changed) {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => this.write(), 150);
    for (const listener of this.listeners) listener(changed);
  }

  /** Put the view into the URL; a page inside a notebook has none to write to. */
  write() {
    try {
      history.replaceState(null, "", `#${new URLSearchParams(this.view)}`);
    } catch {
      // The view stays where it is, only its link is lost.
    }
  }

  /** The user changed the hash, or followed a link to another view. */
  follow() {
    const view = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const names = new Set([...Object.keys(view), ...Object.keys(this.view)]);
    this.set(Object.fromEntries([...names].map((name) => [name, view[name] ?? null])));
  }

  /** @param {(changed: Set<string>) => void} listener */
  listen(listener) {
    this.listeners.push(listener);
  }
}

const state = new State();
