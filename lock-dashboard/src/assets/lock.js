// The dialog with one lock.

import { Rows } from './rows.js';
import { byId, count, left, long, make, put, show, span, visible } from './text.js';

let openKey = null;
let reading = null; // the key that is being read
let mayRevoke = false;
let asked = null; // what is revoked after the second question: the key, and the client or null

function facts(pairs) {
  byId('lock-facts').replaceChildren(...pairs.filter(([, text]) => text).flatMap(([name, text]) => [make('dt', '', name), make('dd', '', text)]));
}

const permits = (it) => (it.permits ? `, ${it.permits[0]} of ${it.permits[1]} permits` : '');
const mode = (it) => (it.mode ? `, ${it.mode}` : '');
const held = (it, about) => (it.held === null ? '' : `, for ${about}${long(it.held)}`);

function stored(it) {
  const rest = it.left === null ? ', never expires' : `, lease left ${left(it.left)}`;
  const kept = it.released ? ', released, kept for its min_hold' : '';
  return `${visible(it.holder)}${mode(it)}${permits(it)}${held(it, 'up to ')}${rest}${kept}`;
}

function answered(it) {
  return `${visible(it.holder)}${mode(it)}${permits(it)}${held(it, '')}${it.silent === null ? '' : `; no answer for ${long(it.silent)}`}`;
}

const storeRows = new Rows(byId('lock-store'), () => ({ node: make('li') }), (row, it) => put(row.node, stored(it)));

const answerRows = new Rows(
  byId('lock-answers'),
  () => {
    const node = make('li', 'answer');
    const text = node.appendChild(make('span'));
    const button = node.appendChild(make('button', '', 'Revoke'));
    button.type = 'button';
    const row = { node, text, button };
    button.addEventListener('click', () => askRevoke(row.item.client, `from ${visible(row.item.holder)}`));
    return row;
  },
  (row, it) => {
    put(row.text, answered(it));
    show(row.button, mayRevoke);
    row.button.disabled = !it.revocable;
    row.button.title = it.revocable ? '' : 'This client was not built with revocable(true).';
    row.button.setAttribute('aria-label', `Revoke from ${visible(it.holder)}`);
  },
);

const pastRows = new Rows(
  byId('lock-past'),
  () => {
    const node = make('li', 'answer');
    return { node, who: node.appendChild(make('span')), when: node.appendChild(make('span', 'sub when')) };
  },
  (row, it) => {
    put(row.who, `${visible(it.holder)}${mode(it)}${permits(it)}`);
    row.who.title = it.function ? visible(it.function) : '';
    const fence = it.fence === null ? '' : `token ${it.fence} · `;
    put(row.when, `${fence}held ${span(it.held)} · until ${new Date(it.at).toLocaleTimeString('en-GB')}`);
  },
);

function drawLock(lock) {
  const { store } = lock;
  const answers = lock.answers.filter((it) => it.holder);
  const first = answers[0];
  const fences = answers.filter((it) => it.fence !== null).map((it) => String(it.fence));
  facts([
    ['Template', first?.template && first.template !== '(none)' ? visible(first.template) : ''],
    ['Function', first?.function ? visible(first.function) : ''],
    ['Format', store ? store.layout.replaceAll('_', ' ') : ''],
    ['Waiting', `${count(Math.max(0, ...lock.answers.map((it) => it.calls)), 'call', 'calls')}${store ? `, ${count(store.queued, 'process', 'processes')} in the queue` : ''}`],
    ['Fencing token', fences.join(', ')],
    ['Held at most', first?.max_hold ? `${long(first.max_hold)} (max_hold)` : ''],
  ]);
  storeRows.set(store?.holders ?? [], (it) => `${it.client}|${it.holder}|${it.mode}`);
  const isCut = store?.complete === false;
  put(byId('lock-store-note'), lock.problem ? 'not known' : isCut ? 'There are more. Those are shown whose leases end first.' : 'The key is free, or is no lock.');
  show(byId('lock-store-note'), isCut || !store?.holders.length);
  answerRows.set(answers, (it) => `${it.client}|${it.mode}`);
  show(byId('lock-answers-none'), answers.length === 0);
  pastRows.set(lock.last_holders, (it) => `${it.client}|${it.at - it.held}`);
  const seen = lock.last_holders.length ? 'Seen by this dashboard in the last hour.' : 'This dashboard has seen none in the last hour.';
  put(byId('lock-past-note'), `${seen} Short holds, and those of times when nobody looked at it, are missing.`);
  show(byId('lock-past-note'), true);
  put(byId('lock-problem'), lock.problem ? `The store could not be read: ${visible(lock.problem)}` : '');
  show(byId('lock-problem'), lock.problem !== null);
  show(byId('revoke-all'), mayRevoke && asked === null && answers.filter((it) => it.revocable).length > 1);
}

/** Reads the open lock, unless it is being read. */
export async function readLock() {
  const key = openKey;
  if (key === null || reading === key) return;
  reading = key;
  try {
    // The server waits for less than that.
    const signal = AbortSignal.timeout(60000);
    const answer = await fetch(`api/lock?key=${encodeURIComponent(key)}`, { signal });
    const body = await answer.json();
    if (key !== openKey) return;
    if (answer.ok) drawLock(body);
    else throw new Error(body.problem);
  } catch (error) {
    if (key !== openKey) return;
    put(byId('lock-problem'), `The lock cannot be read: ${visible(error.message)}`);
    show(byId('lock-problem'), true);
  } finally {
    if (reading === key) reading = null;
  }
}

/** The part of the address that names a lock. */
function linkTo(key) {
  return `#lock=${encodeURIComponent(key)}`;
}

export function openLock(key) {
  if (openKey === key) return;
  openKey = key;
  put(byId('lock-key'), visible(key));
  byId('lock-facts').replaceChildren();
  storeRows.clear();
  answerRows.clear();
  pastRows.clear();
  put(byId('lock-outcome'), '');
  for (const id of ['lock-problem', 'lock-store-note', 'lock-answers-none', 'lock-past-note', 'revoke-all']) show(byId(id), false);
  endQuestion();
  history.replaceState(null, '', `${location.pathname}${location.search}${linkTo(key)}`);
  if (!byId('lock').open) byId('lock').showModal();
  readLock();
}

/** Whether the server lets the page revoke locks. */
export function allowRevoking(allowed) {
  mayRevoke = allowed;
}

function askRevoke(client, from) {
  asked = { key: openKey, client };
  put(byId('revoke-text'), `Revoke the lock ${from}? This stops its work.`);
  put(byId('lock-outcome'), '');
  show(byId('revoke-question'), true);
  show(byId('revoke-all'), false);
  byId('revoke-no').focus();
}

function endQuestion() {
  asked = null;
  show(byId('revoke-question'), false);
}

async function revoke() {
  const request = asked;
  endQuestion();
  if (request === null || request.key !== openKey) return;
  // The outcome belongs to this lock, and another one may be opened before it is known.
  const report = (text) => request.key === openKey && put(byId('lock-outcome'), text);
  report('Asking…');
  try {
    const answer = await fetch('api/revoke', {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-lock-dashboard': '1' },
      body: JSON.stringify(request),
    });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.problem);
    const texts = [];
    if (body.revoked) texts.push(`${count(body.revoked, 'holder gives', 'holders give')} the lock up.`);
    if (body.refused) texts.push(`${count(body.refused, 'holder keeps', 'holders keep')} it: the client is not revocable.`);
    if (body.unanswered) texts.push(`${count(body.unanswered, 'client', 'clients')} did not answer.`);
    report(texts.join(' ') || 'No client that answers holds this lock.');
    readLock();
  } catch (error) {
    report(`The lock was not revoked: ${visible(error.message)}`);
  }
}

/** Makes the buttons of the dialog work. */
export function listenToLock() {
  byId('lock').addEventListener('close', () => {
    // The event comes later, and another lock may have been opened by then.
    if (byId('lock').open) return;
    // The address may name another lock by now, which is opened next.
    const isNamed = openKey !== null && location.hash === linkTo(openKey);
    openKey = null;
    endQuestion();
    if (isNamed) history.replaceState(null, '', location.pathname + location.search);
  });
  byId('revoke-all').addEventListener('click', () => askRevoke(null, 'from all holders'));
  byId('revoke-yes').addEventListener('click', revoke);
  byId('revoke-no').addEventListener('click', () => {
    endQuestion();
    readLock();
  });
}
