// The dialog with one lock.

import { byId, count, left, long, make, put, show, visible } from './text.js';

/** Only a page that can revoke locks has it. */
const token = document.querySelector('meta[name="lock-dashboard-token"]')?.content;

let openKey = null;

function facts(pairs) {
  byId('lock-facts').replaceChildren(...pairs.filter(([, text]) => text).flatMap(([name, text]) => [make('dt', '', name), make('dd', '', text)]));
}

function list(id, texts, none) {
  byId(id).replaceChildren(...(texts.length ? texts.map((text) => make('li', '', text)) : [make('li', 'sub', none)]));
}

function drawLock(lock) {
  const { store, answers } = lock;
  const first = answers.find((it) => it.holder) ?? answers[0];
  const fences = answers.filter((it) => it.fence !== null).map((it) => String(it.fence));
  facts([
    ['Template', first?.template && first.template !== '(none)' ? visible(first.template) : ''],
    ['Function', first?.function ? visible(first.function) : ''],
    ['Format', store ? store.layout.replaceAll('_', ' ') : ''],
    ['Waiting', `${count(Math.max(0, ...answers.map((it) => it.calls)), 'call', 'calls')}${store ? `, ${count(store.queued, 'process', 'processes')} in the queue` : ''}`],
    ['Fencing token', fences.join(', ')],
  ]);
  const permits = (it) => (it.permits ? `, ${it.permits[0]} of ${it.permits[1]} permits` : '');
  const held = (it, about) => (it.held === null ? '' : `, for ${about}${long(it.held)}`);
  const stored = (it) => {
    const rest = it.left === null ? ', never expires' : `, lease left ${left(it.left)}`;
    return `${visible(it.holder)}${it.mode ? `, ${it.mode}` : ''}${permits(it)}${held(it, 'up to ')}${rest}${it.released ? ', released, kept for its min_hold' : ''}`;
  };
  list('lock-store', (store?.holders ?? []).map(stored), lock.problem ? 'not known' : 'The key is free, or is no lock.');
  const told = (it) => `${visible(it.holder)}${it.mode ? `, ${it.mode}` : ''}${permits(it)}${held(it, '')}${it.silent === null ? '' : `; does not answer for ${long(it.silent)}`}${it.revocable ? ', revocable' : ''}`;
  list('lock-answers', answers.filter((it) => it.holder).map(told), 'No client says that it holds this lock.');
  put(byId('lock-problem'), lock.problem ? `The store could not tell: ${visible(lock.problem)}` : '');
  show(byId('lock-problem'), lock.problem !== null);
  show(byId('lock-actions'), token !== undefined && answers.some((it) => it.holder));
}

export async function readLock() {
  const key = openKey;
  if (key === null) return;
  try {
    const answer = await fetch(`api/locks?key=${encodeURIComponent(key)}`);
    const body = await answer.json();
    if (key !== openKey) return;
    if (answer.ok) drawLock(body);
    else throw new Error(body.problem);
  } catch (error) {
    put(byId('lock-problem'), `The lock cannot be read: ${visible(error.message)}`);
    show(byId('lock-problem'), true);
  }
}

export function openLock(key) {
  openKey = key;
  put(byId('lock-key'), visible(key));
  for (const id of ['lock-facts', 'lock-store', 'lock-answers']) byId(id).replaceChildren();
  put(byId('lock-outcome'), '');
  show(byId('lock-problem'), false);
  show(byId('lock-actions'), false);
  askRevoke(false);
  history.replaceState(null, '', `${location.pathname}${location.search}#lock=${encodeURIComponent(key)}`);
  if (!byId('lock').open) byId('lock').showModal();
  readLock();
}

function askRevoke(asks) {
  show(byId('revoke-question'), asks);
  show(byId('revoke'), !asks);
}

async function revoke() {
  askRevoke(false);
  put(byId('lock-outcome'), 'Asking the holders…');
  try {
    const answer = await fetch('api/revoke', {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-lock-dashboard-token': token },
      body: JSON.stringify({ key: openKey }),
    });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.problem);
    const texts = [];
    if (body.revoked) texts.push(`${count(body.revoked, 'holder gives', 'holders give')} the lock up.`);
    if (body.refused) texts.push(`${count(body.refused, 'holder keeps', 'holders keep')} it: the client is not revocable.`);
    if (body.unanswered) texts.push(`${count(body.unanswered, 'client has', 'clients have')} not answered.`);
    put(byId('lock-outcome'), texts.join(' ') || 'No client that answers holds this lock.');
    readLock();
  } catch (error) {
    put(byId('lock-outcome'), `The lock was not revoked: ${visible(error.message)}`);
  }
}

/** Makes the buttons of the dialog work. */
export function listenToLock() {
  byId('lock').addEventListener('close', () => {
    // The event comes later, and another lock may have been opened by then.
    if (byId('lock').open) return;
    openKey = null;
    history.replaceState(null, '', location.pathname + location.search);
  });
  byId('revoke').addEventListener('click', () => askRevoke(true));
  byId('revoke-yes').addEventListener('click', revoke);
  byId('revoke-no').addEventListener('click', () => askRevoke(false));
}
