import { MultiSemaphore, Mutex } from "redis-semaphore";
import { Busy } from "./library.js";

const RENEWED_LEASE = Number(process.env.PEER_LEASE ?? 10_000);

export function connect([redis, ...others]) {
  if (others.length > 0) throw new Error("unsupported: this client uses one server");
  return {
    module: "redis-semaphore",
    settings:
      `lease ${RENEWED_LEASE / 1000} s refreshed every ${(RENEWED_LEASE * 4) / 5000} s (default), ` +
      `tries without end every 10 ms (default)`,
    // The prefix cannot be changed.
    name: (key) => `mutex:${key}`,
    async acquire(key, wait, lease) {
      const options = {
        onLockLost: (error) => process.stderr.write(`${error.message}\n`),
        ...(lease > 0 ? { lockTimeout: lease, refreshInterval: 0 } : { lockTimeout: RENEWED_LEASE }),
        ...(wait > 0 ? { acquireTimeout: wait } : { acquireAttemptsLimit: 1 }),
      };
      const permits = key.match(/^(\d+)\/(\d+):(.*)$/);
      const mutex = permits
        ? new MultiSemaphore(redis, permits[3], Number(permits[2]), Number(permits[1]), options)
        : new Mutex(redis, key, options);
      if (!(await mutex.tryAcquire())) throw new Busy();
      return held(redis, key, mutex);
    },
  };
}

function held(redis, key, mutex) {
  return {
    // As in the library's README: another mutex with the same identifier, whose acquisition is a refresh.
    async renew(lease) {
      const options = {
        identifier: mutex.identifier,
        acquiredExternally: true,
        lockTimeout: lease,
        refreshInterval: 0,
        acquireAttemptsLimit: 1,
      };
      if (!(await new Mutex(redis, key, options).tryAcquire())) throw new Error("not the owner any more");
    },
    // Has no effect and reports no error if another owner has the lock by now.
    release: () => mutex.release(),
    held: () => mutex.isAcquired,
  };
}
