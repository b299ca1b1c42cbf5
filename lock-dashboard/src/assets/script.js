// The page of the dashboard: draws what the server sends.

import { columns, line } from './lines.js';
import { allowRevoking, listenToLock, openLock, readLock } from './lock.js';
import { clientRows, lockRows, lossRows, templateRows, tickRow } from './tables.js';
import { byId, count, long, number, put, show, span, visible } from './text.js';

/** The time that the lines show, in ms. */
const WINDOW = 300000;

/** A page that is hidden for this long stops to listen, in ms. */
const LONGEST_HIDDEN = 60000;

let state = null; // what the server has sent last
let age = 0; // of the next state, when it was sent
let asOf = 0; // when the clients answered, by performance.now()
let received = 0; // when the last event came
let samples = []; // [time, held, waiting, grants in a second]
let source = null;
let lostAt = null; // when the connection was lost
let isSignedOut = false;
const sorting = { held: null, contention: null };
let found = null; // what the server has found among the rows that it does not send

function drawLines() {
  const now = state.now;
  // The first minutes are not squeezed into a corner.
  const from = Math.min(Math.max(samples[0]?.[0] ?? 0, now - WINDOW), now - 60000);
  const gap = Math.max(15000, state.refresh * 4);
  ['held', 'waiting', 'grants'].forEach((name, at) => {
    line(byId(`line-${name}`), samples.map((sample) => [sample[0], sample[at + 1]]).filter((point) => point[1] !== null), from, now, gap);
  });
  for (const node of document.querySelectorAll('.from')) put(node, `${Math.round((now - from) / 60000)} min ago`);
  const minutes = state.losses?.minutes ?? [];
  columns(byId('line-losses'), minutes, 30);
  columns(byId('losses-line'), minutes, 44);
}

const textOf = { key: (it) => it.key, holder: (it) => it.holder ?? '', template: (it) => it.template };

function sorted(items, name) {
  const by = sorting[name];
  if (!by) return items;
  const value = textOf[by.field] ?? ((it) => it[by.field] ?? -1);
  const order = (one, other) => (typeof one === 'string' ? one.localeCompare(other) : one - other);
  return [...items].sort((one, other) => by.sign * order(value(one), value(other)));
}

function drawLocks() {
  const text = byId('search').value.trim().toLowerCase();
  let rows = state.rows;
  let rest = state.rest;
  const isFound = text !== '' && rest > 0 && found?.text === text;
  if (isFound) {
    ({ rows, rest } = found);
  } else if (text) {
    const has = (lock) => [lock.key, lock.template, lock.function, lock.holder].some((it) => it?.toLowerCase().includes(text));
    rows = rows.filter(has);
  }
  lockRows.set(sorted(rows, 'held'), (lock) => `${lock.client}|${lock.mode}|${lock.key}`, { asOf: isFound ? found.asOf : asOf });
  const shown = count(rows.length, 'row', 'rows');
  const more = rest > 0 ? ` · ${number(rest)} more not shown` : '';
  const pending = text && state.rest > 0 && !isFound ? ' · searching all…' : '';
  put(byId('held-count'), state.totals ? `${shown}${text ? ' found' : ''}${more}${pending}` : '');
  put(byId('held-empty'), text ? 'No lock matches.' : 'No lock is held, and no call waits.');
  show(byId('held-empty'), rows.length === 0 && state.totals !== null);
}

function drawTotals() {
  const { totals, losses } = state;
  const lost = losses.minutes.reduce((sum, value) => sum + value, 0);
  put(byId('total-held'), number(totals.held));
  put(byId('total-waiting'), number(totals.waiting));
  put(byId('detail-waiting'), totals.waited_for ? `for ${count(totals.waited_for, 'key', 'keys')}` : '');
  // Most rounds do not measure it.
  const measured = samples.findLast((it) => it[3] !== null);
  put(byId('total-grants'), measured ? number(measured[3]) : '–');
  const covered = Math.max(1, state.covered / 1000);
  const grants = state.contention.reduce((sum, it) => sum + it.grants, 0);
  put(byId('detail-grants'), state.covered > 0 ? `mean ${number(Math.round((grants / covered) * 10) / 10)}` : '');
  const most = Math.max(0, ...samples.map((it) => it[1]));
  put(byId('detail-held'), `most ${number(most)}`);
  put(byId('total-losses'), `${number(lost)}${losses.more ? '+' : ''}`);
  byId('total-losses').classList.toggle('bad', lost > 0);
  put(byId('detail-losses'), `${number(totals.lost)} since start`);
  put(byId('total-clients'), number(totals.clients));
  const silent = totals.unanswered === null ? '' : totals.unanswered ? ` · ${number(totals.unanswered)} silent` : ' · all answer';
  put(byId('detail-clients'), state.problem ? 'by their last answers' : (totals.down ? `${totals.down} without the store` : 'store up') + silent);
}

/** What the reader has to know first, and how bad it is. */
function warning() {
  if (isSignedOut) return ['bad', 'The dashboard does not accept this session any more. Sign in again, and reload the page.'];
  if (lostAt !== null && performance.now() - lostAt > 2500) return ['bad', 'The connection to the dashboard is lost. Reconnecting…'];
  if (!state) return null;
  const quiet = performance.now() - received;
  if (quiet > 10000 + 4 * (document.hidden ? 5000 : state.refresh)) {
    return ['bad', `The dashboard has sent nothing for ${long(Math.floor(quiet / 10000) * 10000)}.`];
  }
  if (state.problem) {
    // A text that changes every second would be read out every second.
    const since = `since ${new Date(state.problem.since).toLocaleTimeString('en-GB')}`;
    const old = state.totals ? ' The page shows the last answers.' : '';
    return ['bad', `The processes are unreachable ${since}: ${visible(state.problem.text)}.${old}`];
  }
  const { unanswered, incomplete, down } = state.totals;
  const texts = [];
  if (unanswered) {
    const names = state.clients.filter((it) => it.silent !== null).slice(0, 3).map((it) => visible(it.label));
    const who = names.length ? ` Known before: ${names.join('; ')}; the page shows the locks of their last answers.` : '';
    texts.push(`${count(unanswered, 'client', 'clients')} did not answer.${who}`);
  }
  if (down) texts.push(`${count(down, 'client does', 'clients do')} not reach the store.`);
  if (incomplete) texts.push(`${count(incomplete, 'client holds', 'clients hold')} more locks than fit into an answer; only the oldest are shown.`);
  return texts.length ? ['warn', texts.join(' ')] : null;
}

function drawStatus() {
  const [level, text] = warning() ?? ['good', ''];
  put(byId('banner'), text);
  show(byId('banner'), text !== '');
  byId('banner').className = level;
  const isConnecting = !state && level !== 'bad';
  byId('dot').className = `dot ${isConnecting ? '' : level}`;
  if (!state || level === 'bad') put(byId('status-text'), isConnecting ? 'connecting…' : 'not live');
  else put(byId('status-text'), `live · ${span(state.totals.took)} to ask ${count(state.totals.clients, 'client', 'clients')}`);
}

function draw() {
  allowRevoking(state.actions);
  put(byId('namespace'), state.namespace ? `in ${visible(state.namespace)}` : '');
  drawStatus();
  if (!state.totals) return;
  drawTotals();
  drawLines();
  drawLocks();
  // In slots of 15 seconds.
  const gap = Math.max(1, Math.ceil(state.refresh / 15000) * 2);
  templateRows.set(sorted(state.contention, 'contention'), (it) => it.template, { gap });
  put(byId('contention-count'), `over the last ${long(Math.max(1000, state.covered))}`);
  show(byId('contention-empty'), state.contention.length === 0);
  lossRows.set(state.losses.recent, (it) => `${it.at}|${it.key}|${it.holder}`);
  put(byId('losses-count'), state.losses.rest ? `the last ${state.losses.recent.length}; ${number(state.losses.rest)} earlier` : '');
  show(byId('losses-empty'), state.losses.recent.length === 0);
  clientRows.set(state.clients, (it) => it.id, { time: state.now });
  put(byId('clients-count'), state.clients_rest ? `${number(state.clients_rest)} more not shown` : '');
  show(byId('clients-empty'), state.clients.length === 0);
}

function tick() {
  drawStatus();
  if (!state?.totals || document.hidden) return;
  for (const row of lockRows.rows.values()) tickRow(row);
}

async function searchAll() {
  const text = byId('search').value.trim().toLowerCase();
  if (!text || !state?.rest || document.hidden) return;
  try {
    const answer = await fetch(`api/locks?search=${encodeURIComponent(text)}`);
    const body = await answer.json();
    if (!answer.ok || byId('search').value.trim().toLowerCase() !== text) return;
    found = { text, rows: body.rows, rest: body.rest, asOf: performance.now() - body.age };
    drawLocks();
  } catch {
    // The rows that are here stay; the banner shows the state of the connection.
  }
}

/** Why the stream was refused: it has no status. */
async function findReason() {
  try {
    const answer = await fetch('api/state', { redirect: 'manual' });
    isSignedOut = answer.status === 401 || answer.status === 403 || answer.type === 'opaqueredirect';
  } catch {
    isSignedOut = false;
  }
}

function connect() {
  source?.close();
  if (isSignedOut) return;
  source = new EventSource(document.hidden ? 'api/events?hidden=true' : 'api/events');
  const own = source;
  source.addEventListener('open', () => {
    lostAt = null;
    received = performance.now();
    drawStatus();
  });
  source.addEventListener('history', (event) => {
    samples = JSON.parse(event.data);
  });
  source.addEventListener('age', (event) => {
    age = Number(event.data);
  });
  source.addEventListener('state', (event) => {
    state = JSON.parse(event.data);
    received = performance.now();
    asOf = received - age;
    const { sample } = state;
    if (sample && sample[0] > (samples.at(-1)?.[0] ?? 0)) samples.push(sample);
    while (samples.length && samples[0][0] < state.now - WINDOW) samples.shift();
    draw();
    searchAll();
  });
  // A stream lives for half a minute.
  source.addEventListener('end', connect);
  source.addEventListener('error', async () => {
    lostAt ??= performance.now();
    drawStatus();
    // Otherwise, the browser connects again by itself.
    if (own.readyState !== EventSource.CLOSED) return;
    await findReason();
    drawStatus();
    setTimeout(() => own === source && connect(), 3000);
  });
}

/** A page that nobody sees asks less often, and after a while not at all. */
let hiding = 0;
function onVisibility() {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      source?.close();
      source = null;
    }, LONGEST_HIDDEN);
  }
  received = performance.now();
  connect();
}

function listen() {
  document.addEventListener('visibilitychange', onVisibility);
  document.addEventListener('keydown', (event) => {
    const isTyping = event.target instanceof HTMLInputElement;
    if (event.key === '/' && !isTyping && !byId('lock').open && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      byId('search').focus();
      byId('search').select();
    } else if (event.key === 'Escape' && isTyping) {
      byId('search').value = '';
      byId('search').blur();
      if (state) drawLocks();
    }
  });
  let typing = 0;
  byId('search').addEventListener('input', () => {
    if (state?.totals) drawLocks();
    clearTimeout(typing);
    typing = setTimeout(searchAll, 200);
  });
  for (const name of Object.keys(sorting)) {
    for (const head of document.querySelectorAll(`#${name}-table th[data-sort]`)) {
      head.querySelector('button').addEventListener('click', () => {
        const field = head.dataset.sort;
        const first = textOf[field] ? 1 : -1;
        const known = sorting[name]?.field === field ? sorting[name].sign : null;
        sorting[name] = known === null ? { field, sign: first } : known === first ? { field, sign: -first } : null;
        for (const other of document.querySelectorAll(`#${name}-table th`)) other.removeAttribute('aria-sort');
        if (sorting[name]) head.setAttribute('aria-sort', sorting[name].sign > 0 ? 'ascending' : 'descending');
        if (state?.totals) draw();
      });
    }
  }
  byId('skip').addEventListener('click', () => document.querySelector('#held .scroll').focus());
  document.querySelector('main').addEventListener('click', (event) => {
    const button = event.target instanceof Element ? event.target.closest('button.key') : null;
    if (button) openLock(button.dataset.key);
  });
  listenToLock();
}

/** Opens the lock that the address names. */
function openLink() {
  const link = /^#lock=(.+)$/.exec(location.hash);
  if (!link) return;
  try {
    openLock(decodeURIComponent(link[1]));
  } catch {
    // Not a link of this page.
  }
}

listen();
connect();
setInterval(tick, 500);
setInterval(() => document.hidden || readLock(), 2000);
openLink();
addEventListener('hashchange', openLink);
