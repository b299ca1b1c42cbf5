// The tables of the page.

import { graph, line } from './lines.js';
import { left, long, make, number, percent, put, show, span, visible } from './text.js';

/** A table whose rows stay the same nodes as long as their locks, clients and so on are there. */
class Rows {
  constructor(name, create, update) {
    this.body = document.querySelector(`#${name}-table tbody`);
    this.create = create;
    this.update = update;
    this.rows = new Map();
  }

  set(items, idOf, now) {
    const seen = new Map();
    const next = new Map();
    let at = this.body.firstChild;
    for (const item of items) {
      const base = idOf(item);
      const nth = seen.get(base) ?? 0;
      seen.set(base, nth + 1);
      const id = `${nth}|${base}`;
      const row = this.rows.get(id) ?? this.create();
      row.item = item;
      this.update(row, item, now);
      next.set(id, row);
      this.rows.delete(id);
      if (row.node === at) at = at.nextSibling;
      else this.body.insertBefore(row.node, at);
    }
    for (const row of this.rows.values()) row.node.remove();
    this.rows = next;
  }
}

function cells(names) {
  const node = make('tr');
  const all = names.map((name) => node.appendChild(make('td', name)));
  return { node, all };
}

/** The button that opens a lock. */
function keyButton(cell) {
  const button = cell.appendChild(make('button', 'key'));
  button.type = 'button';
  return button;
}

function putKey(button, key) {
  if (button.dataset.key === key) return;
  button.dataset.key = key;
  put(button, visible(key));
  button.title = visible(key);
}

export const lockRows = new Rows(
  'held',
  () => {
    const { node, all } = cells(['wide', 'medium', 'right', 'right', 'right']);
    const key = keyButton(all[0]);
    const sub = all[0].appendChild(make('span', 'sub cut'));
    const origin = sub.appendChild(make('span'));
    const tag = sub.appendChild(make('span', 'tag'));
    const narrow = sub.appendChild(make('span', 'only-narrow'));
    const holder = all[1].appendChild(make('span', 'cut'));
    const note = all[1].appendChild(make('span', 'sub cut'));
    const box = all[3].appendChild(make('span', 'left'));
    const rest = box.appendChild(make('span', 'number-left'));
    const bar = box.appendChild(make('span', 'lease'));
    bar.appendChild(make('span'));
    const calls = all[4].appendChild(make('span'));
    const processes = all[4].appendChild(make('span', 'sub cut extra'));
    return { node, key, origin, tag, narrow, holder, note, held: all[2], rest, bar, calls, processes, longest: 0, before: 0, seen: 0 };
  },
  (row, lock, now) => {
    putKey(row.key, lock.key);
    const template = lock.template === '(none)' ? '' : lock.template;
    put(row.origin, visible(lock.function || template));
    row.origin.title = visible([lock.template, lock.function].filter(Boolean).join(' · '));
    const tags = [lock.mode, lock.permits && `${lock.permits[0]} of ${lock.permits[1]}`, lock.renewed || !lock.holder ? null : 'fixed'];
    const tag = tags.filter(Boolean).join(', ');
    put(row.tag, tag);
    show(row.tag, tag !== '');
    row.tag.title = lock.permits ? 'permits' : lock.renewed ? 'mode' : 'a lease that is not renewed';
    const holder = visible(lock.holder ?? 'no holder answers');
    const [name, about] = nameOf(holder);
    put(row.holder, name);
    row.holder.title = holder;
    row.holder.classList.toggle('warn-text', lock.holder === null);
    put(row.narrow, (row.origin.textContent || tag ? ' · ' : '') + name);
    put(row.note, lock.silent === null ? about : `does not answer for ${long(lock.silent)}`);
    row.note.classList.toggle('bad-text', lock.silent !== null);
    put(row.calls, String(lock.calls));
    row.calls.className = lock.calls > 0 ? 'waits' : 'zero';
    put(row.processes, lock.processes > 1 ? `${lock.processes} processes` : '');
    // The client may have acquired the key again since.
    const passed = performance.now() - row.seen;
    if (lock.held < row.before + passed / 2) row.longest = 0;
    row.before = lock.held;
    row.seen = performance.now();
    row.longest = Math.max(row.longest, lock.left ?? 0);
    tickRow(row, now.age);
  },
);

/** The two parts of a name such as `web-3 (pid 4711, shop 1.4.2)`. */
function nameOf(label) {
  const [, name, about] = /^(.+?) \((.*)\)$/s.exec(label) ?? [null, label, ''];
  return [name, about];
}

/** What of a row changes without the server. */
export function tickRow(row, since) {
  const lock = row.item;
  put(row.held, lock.held === null ? '–' : long(lock.held + since));
  show(row.bar, lock.left !== null);
  if (lock.left === null) {
    put(row.rest, '–');
    return;
  }
  const rest = Math.max(0, lock.left - since);
  put(row.rest, left(rest));
  const part = row.longest ? rest / row.longest : 0;
  row.bar.firstChild.style.transform = `scaleX(${part.toFixed(3)})`;
  row.node.classList.toggle('late', lock.silent !== null || (lock.renewed && part < 0.4));
}

export const templateRows = new Rows(
  'contention',
  () => {
    const names = ['wide', 'right', 'graph extra', 'right', 'right extra', 'right', 'right extra', 'right extra', 'right extra', 'right extra', 'right'];
    const { node, all } = cells(names);
    const key = all[0].appendChild(make('span', 'key cut'));
    const sub = all[0].appendChild(make('span', 'sub cut'));
    const svg = all[2].appendChild(graph());
    return { node, all, key, sub, svg };
  },
  (row, it) => {
    const name = it.template === '(none)' ? 'locks without a template' : visible(it.template);
    put(row.key, name);
    row.key.title = name;
    const more = it.functions > 1 ? ` and ${it.functions - 1} more` : '';
    put(row.sub, it.function ? visible(it.function) + more : '');
    const texts = { 1: span(it.waited), 3: String(it.waiting), 4: span(it.wait_p50), 5: span(it.wait_p99), 6: span(it.hold_p50), 7: span(it.hold_p99), 8: number(it.grants), 9: percent(it.handed_over), 10: percent(it.in_use) };
    for (const [at, text] of Object.entries(texts)) put(row.all[at], text);
    row.all[1].classList.toggle('zero', it.waited === 0);
    row.all[3].classList.toggle('zero', it.waiting === 0);
    row.all[3].classList.toggle('waits', it.waiting > 0);
    line(row.svg, it.line.map((value, at) => [at, value]), 0, Math.max(4, it.line.length - 1), Infinity);
  },
);

export const lossRows = new Rows(
  'losses',
  () => {
    const { node, all } = cells(['time', 'wide', 'bad-text time', 'right']);
    const key = keyButton(all[1]);
    const sub = all[1].appendChild(make('span', 'sub cut'));
    return { node, all, key, sub };
  },
  (row, it) => {
    const at = new Date(it.at);
    put(row.all[0], at.toLocaleTimeString('en-GB'));
    row.all[0].title = at.toISOString();
    putKey(row.key, it.key);
    put(row.sub, visible([it.function, it.holder].filter(Boolean).join(' · ')));
    put(row.all[2], it.reason.replaceAll('_', ' '));
    put(row.all[3], it.held === null ? '–' : span(it.held));
  },
);

export const clientRows = new Rows(
  'clients',
  () => {
    const { node, all } = cells(['wide', 'time', 'right', 'right extra', 'right', 'right extra']);
    const name = all[0].appendChild(make('span', 'cut'));
    const sub = all[0].appendChild(make('span', 'sub cut'));
    return { node, all, name, sub };
  },
  (row, it, now) => {
    const [name, about] = nameOf(visible(it.label));
    put(row.name, name);
    row.name.title = visible(it.label);
    put(row.sub, [about, it.library && `library ${visible(it.library)}`, it.revocable && 'revocable'].filter(Boolean).join(' · '));
    const problem = it.silent !== null ? `silent for ${long(it.silent)}` : it.up ? null : 'store not reached';
    const note = it.complete ? 'answers' : 'answers in part';
    put(row.all[1], problem ?? note);
    row.all[1].className = `time ${problem ? 'bad-text' : it.complete ? 'good-text' : 'warn-text'}`;
    [it.held, it.waiting, it.lost].forEach((value, at) => put(row.all[at + 2], number(value)));
    put(row.all[5], it.started === null ? '–' : long(Math.max(0, now.time - it.started)));
  },
);
