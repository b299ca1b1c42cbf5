// The tables of the page.

import { graph, line } from './lines.js';
import { tableRows } from './rows.js';
import { left, long, make, number, percent, put, show, span, visible } from './text.js';

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

export const lockRows = tableRows(
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
    return { node, key, origin, tag, narrow, holder, note, held: all[2], rest, bar, calls, processes };
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
    put(row.note, lock.silent === null ? about : `no answer for ${long(lock.silent)}`);
    row.note.classList.toggle('bad-text', lock.silent !== null);
    put(row.calls, String(lock.calls));
    row.calls.className = lock.calls > 0 ? 'waits' : 'zero';
    put(row.processes, lock.processes > 1 ? `${lock.processes} processes` : '');
    row.asOf = now.asOf;
    tickRow(row);
  },
);

function day(at) {
  return at.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
}

/** The two parts of a name such as `web-3 (pid 4711, shop 1.4.2)`. */
function nameOf(label) {
  const [, name, about] = /^(.+?) \((.*)\)$/s.exec(label) ?? [null, label, ''];
  return [name, about];
}

/** What of a row changes without the server. Its times are those of `row.asOf`, by performance.now(). */
export function tickRow(row) {
  const lock = row.item;
  const since = Math.max(0, performance.now() - row.asOf);
  put(row.held, lock.held === null ? '–' : long(lock.held + since));
  show(row.bar, lock.left !== null && lock.lease > 0);
  if (lock.left === null) {
    put(row.rest, '–');
    return;
  }
  const rest = Math.max(0, lock.left - since);
  const part = lock.lease > 0 ? Math.min(1, rest / lock.lease) : 1;
  const isLate = lock.silent !== null || (lock.renewed && part < 0.4);
  put(row.rest, `${isLate ? '! ' : ''}${left(rest)}`);
  row.rest.title = !isLate ? '' : lock.silent === null ? 'the renewal is late' : 'the holder does not answer';
  row.bar.firstChild.style.transform = `scaleX(${part.toFixed(3)})`;
  row.node.classList.toggle('late', isLate);
}

export const templateRows = tableRows(
  'contention',
  () => {
    const names = ['wide', 'right', 'graph extra', 'right', 'right extra', 'right', 'right extra', 'right extra', 'right extra', 'right extra', 'right extra', 'right'];
    const { node, all } = cells(names);
    const key = all[0].appendChild(make('span', 'key cut'));
    const sub = all[0].appendChild(make('span', 'sub cut'));
    const svg = all[2].appendChild(graph());
    return { node, all, key, sub, svg };
  },
  (row, it, now) => {
    const name = it.template === '(none)' ? 'locks without a template' : visible(it.template);
    put(row.key, name);
    row.key.title = name;
    const more = it.functions > 1 ? ` and ${it.functions - 1} more` : '';
    put(row.sub, it.function ? visible(it.function) + more : '');
    const texts = { 1: span(it.waited), 3: String(it.waiting), 4: span(it.wait_p50), 5: span(it.wait_p99), 6: span(it.hold_p50), 7: span(it.hold_p99), 8: number(it.grants), 9: percent(it.handed_over), 10: percent(it.busy), 11: percent(it.in_use) };
    for (const [at, text] of Object.entries(texts)) put(row.all[at], text);
    row.all[1].classList.toggle('zero', it.waited === 0);
    row.all[3].classList.toggle('zero', it.waiting === 0);
    row.all[3].classList.toggle('waits', it.waiting > 0);
    const points = it.line.map((value, at) => [at, value]).filter((point) => point[1] !== null);
    const last = it.line.length - 1;
    line(row.svg, points, Math.min(points[0]?.[0] ?? 0, last - 4), last, now.gap);
  },
);

export const lossRows = tableRows(
  'losses',
  () => {
    const { node, all } = cells(['time', 'wide', 'bad-text time', 'right']);
    const key = keyButton(all[1]);
    const sub = all[1].appendChild(make('span', 'sub cut'));
    return { node, all, key, sub };
  },
  (row, it) => {
    const at = new Date(it.at);
    const isToday = at.toDateString() === new Date().toDateString();
    put(row.all[0], isToday ? at.toLocaleTimeString('en-GB') : `${day(at)} ${at.toLocaleTimeString('en-GB')}`);
    row.all[0].title = at.toISOString();
    putKey(row.key, it.key);
    put(row.sub, visible([it.function, it.holder].filter(Boolean).join(' · ')));
    put(row.all[2], it.reason.replaceAll('_', ' '));
    put(row.all[3], it.held === null ? '–' : span(it.held));
  },
);

export const clientRows = tableRows(
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
    const problem = it.silent !== null ? `ended or silent for ${long(it.silent)}` : it.up ? null : 'store not reached';
    const note = it.complete ? 'answers' : 'partial answer';
    put(row.all[1], problem ?? note);
    row.all[1].className = `time ${problem ? 'bad-text' : it.complete ? 'good-text' : 'warn-text'}`;
    [it.held, it.waiting, it.lost].forEach((value, at) => put(row.all[at + 2], number(value)));
    put(row.all[5], it.started === null ? '–' : long(Math.max(0, now.time - it.started)));
  },
);
