// Lists of nodes that stay the same as long as their locks, clients and so on are there.

/** Whether somebody reads or uses a part of the page now. A finger leaves `:hover` behind. */
function isInUse(body) {
  return body.contains(document.activeElement) || (matchMedia('(hover: hover)').matches && body.matches(':hover'));
}

export class Rows {
  /** `create` makes `{ node, … }`, and `update(row, item, now)` puts an item into it. */
  constructor(body, create, update) {
    this.body = body;
    this.create = create;
    this.update = update;
    this.rows = new Map();
  }

  /** Rows do not change places while somebody uses them. New rows come at the end then. */
  set(items, idOf, now) {
    const seen = new Map();
    const next = new Map();
    const known = this.rows;
    for (const item of items) {
      const base = idOf(item);
      const nth = seen.get(base) ?? 0;
      seen.set(base, nth + 1);
      const id = `${nth}|${base}`;
      const row = known.get(id) ?? this.create();
      row.item = item;
      this.update(row, item, now);
      next.set(id, row);
      known.delete(id);
    }
    // Before the others are put into their places: a node that is moved loses the focus.
    for (const row of known.values()) row.node.remove();
    this.rows = next;
    const isFrozen = isInUse(this.body);
    let at = this.body.firstChild;
    for (const { node } of next.values()) {
      if (node === at) at = at.nextSibling;
      else if (!isFrozen) this.body.insertBefore(node, at);
      else if (!node.isConnected) this.body.append(node);
    }
  }

  clear() {
    this.set([], String);
  }
}

/** The rows of a table. */
export function tableRows(name, create, update) {
  return new Rows(document.querySelector(`#${name}-table tbody`), create, update);
}
