// Lists of nodes that stay the same as long as their locks, clients and so on are there.

/** A table is in use until the pointer or the keyboard has rested for this time, in ms. */
const RESTING = 10000;

/** The most rows that stay in a table although their items are gone. */
const MOST_GONE = 100;

let usedAt = -Infinity;

for (const name of ['pointermove', 'pointerdown', 'wheel', 'keydown', 'focusin']) {
  addEventListener(name, () => { usedAt = performance.now(); }, { capture: true, passive: true });
}

/** Whether somebody reads or uses a part of the page now. A finger leaves `:hover` behind. */
function isInUse(body) {
  if (performance.now() - usedAt > RESTING) return false;
  return body.contains(document.activeElement) || (matchMedia('(hover: hover)').matches && body.matches(':hover'));
}

/** Puts nodes into this order. The one with the focus is not moved, because it would lose the focus. */
function arrange(body, nodes) {
  let at = body.firstChild;
  for (const node of nodes) {
    if (node !== at && node.contains(document.activeElement)) {
      // All before it come later.
      while (at !== node) {
        const next = at.nextSibling;
        body.append(at);
        at = next;
      }
    }
    if (node === at) at = at.nextSibling;
    else body.insertBefore(node, at);
  }
}

export class Rows {
  /** `create` makes `{ node, … }`, and `update(row, item, now)` puts an item into it. */
  constructor(body, create, update) {
    this.body = body;
    this.create = create;
    this.update = update;
    this.rows = new Map();
    this.gone = new Map(); // rows without an item
  }

  /**
   * While somebody uses the rows, none of them changes its place: those whose items are gone stay, and new ones come at
   * the end. Unless the user has asked for another order (`now.mayMove`).
   */
  set(items, idOf, now) {
    const isFrozen = !now?.mayMove && isInUse(this.body);
    const seen = new Map();
    const next = new Map();
    for (const item of items) {
      const base = idOf(item);
      const nth = seen.get(base) ?? 0;
      seen.set(base, nth + 1);
      const id = `${nth}|${base}`;
      const row = this.rows.get(id) ?? this.gone.get(id) ?? this.create();
      if (this.gone.delete(id)) row.node.classList.remove('gone');
      this.rows.delete(id);
      row.item = item;
      this.update(row, item, now);
      next.set(id, row);
    }
    for (const [id, row] of this.rows) {
      row.node.classList.add('gone');
      this.gone.set(id, row);
    }
    this.rows = next;
    for (const [id, row] of this.gone) {
      if (isFrozen && this.gone.size <= MOST_GONE) break;
      row.node.remove();
      this.gone.delete(id);
    }
    const nodes = [...next.values()].map((row) => row.node);
    if (isFrozen) this.body.append(...nodes.filter((node) => !node.isConnected));
    else arrange(this.body, nodes);
  }

  clear() {
    this.set([], String, { mayMove: true });
  }
}

/** The rows of a table. */
export function tableRows(name, create, update) {
  return new Rows(document.querySelector(`#${name}-table tbody`), create, update);
}
