import { setTimeout as sleep } from "node:timers/promises";
import { Busy, FOREVER, OWN_LEASE } from "./library.js";
import { Records, now } from "./records.js";

// How long a task may continue to wait after the end of a run, in milliseconds.
const LEEWAY = 1500;

export async function run(library, file, tasks, millis, workMicros, names) {
  const records = new Records();
  const faults = new Faults();
  const end = performance.now() + millis;
  const draw = keys(names);
  // A library may answer after the timeout, because redlock counts attempts. A late grant is released at once.
  let over = false;

  const task = async (i) => {
    while (performance.now() < end) {
      const { number, key } = draw(i);
      try {
        const requested = now();
        const lock = await library.acquire(key, Math.ceil(end + LEEWAY - performance.now()), OWN_LEASE);
        const granted = now();
        if (!over) {
          if (workMicros > 0) await sleep(Math.ceil(workMicros / 1000));
          records.add(requested, granted, now(), number, i);
        }
        await lock.release();
      } catch (error) {
        if (error instanceof Busy) return;
        await faults.add(error);
      }
    }
  };
  const all = Promise.all(Array.from({ length: tasks }, (_, i) => task(i)));
  const late = new AbortController();
  await Promise.race([all, sleep(millis + LEEWAY + 300, undefined, { signal: late.signal })]);
  late.abort();
  over = true;
  const grants = await records.write(file);
  faults.check();
  return grants;
}

function keys(names) {
  if (!names[0].startsWith("zipf:")) {
    return (task) => ({ number: task % names.length, key: names[task % names.length] });
  }
  const count = Number(names[0].slice("zipf:".length));
  if (!(count > 0)) throw new Error(`${names[0]} is not a number of keys`);
  const sums = new Float64Array(count);
  let sum = 0;
  for (let i = 0; i < count; i++) sums[i] = sum += 1 / (i + 1);
  return () => {
    const place = Math.random() * sum;
    let [low, high] = [0, count - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sums[middle] < place) low = middle + 1;
      else high = middle;
    }
    return { number: low, key: `z${low}` };
  };
}

export async function hold(library, count, millis) {
  const faults = new Faults();
  const all = Array.from({ length: count }, (_, i) => i);
  const locks = await Promise.all(
    all.map((i) => library.acquire(`h${i}`, FOREVER, OWN_LEASE).catch((error) => faults.add(error))),
  );
  await sleep(millis);
  await Promise.all(locks.map((lock) => lock?.release().catch((error) => faults.add(error))));
  faults.check();
}

let waiting = [];

// Starts tasks that each acquire the lock once.
export async function waiters(library, key, count) {
  const group = { records: new Records(), faults: new Faults() };
  const task = async (i) => {
    try {
      const requested = now();
      const lock = await library.acquire(key, FOREVER, OWN_LEASE);
      group.records.add(requested, now(), now(), 0, i);
      await lock.release();
    } catch (error) {
      await group.faults.add(error);
    }
  };
  group.all = Promise.all(Array.from({ length: count }, (_, i) => task(i)));
  waiting.push(group);
  // This attempt is sent after those of the waiters, on the same connection. If it is refused, so were they.
  try {
    const lock = await library.acquire(key, 0, OWN_LEASE);
    await lock.release();
  } catch (error) {
    if (error instanceof Busy) return;
    throw error;
  }
  throw new Error(`nobody held ${key}`);
}

export async function drain(file) {
  const groups = waiting;
  waiting = [];
  const records = new Records();
  for (const group of groups) {
    await group.all;
    records.append(group.records);
  }
  const grants = await records.write(file);
  for (const group of groups) group.faults.check();
  return grants;
}

// Keeps the first error and the number of errors.
class Faults {
  #count = 0;
  #first;

  async add(error) {
    if (this.#count++ === 0) this.#first = error;
    // Without a pause, a server that is down would get requests in a tight loop.
    await sleep(10);
  }

  check() {
    if (this.#count > 0) throw new Error(`${this.#count} failed, the first: ${this.#first.message}`);
  }
}
