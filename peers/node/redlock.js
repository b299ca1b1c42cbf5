import Redlock, { ExecutionError, ResourceLockedError } from "redlock";
import { Busy } from "./library.js";

const RENEWED_LEASE = Number(process.env.PEER_LEASE ?? 30_000);

export function connect(servers) {
  // Retries are set for each acquisition. The settings of the instance also apply to releases: with `retryCount: -1`,
  // the release of a lost lock would never end.
  const redlock = new Redlock(servers);
  redlock.on("error", (error) => {
    if (!(error instanceof ResourceLockedError)) process.stderr.write(`${error.message}\n`);
  });
  const { retryDelay, retryJitter, automaticExtensionThreshold } = redlock.settings;
  return {
    module: "redlock",
    settings:
      `using() with a lease of ${RENEWED_LEASE} ms, extended ${automaticExtensionThreshold} ms before it ends ` +
      `(default), retries without end every ${retryDelay} ms +-${retryJitter} (default)`,
    name: (key) => key,
    async acquire(key, wait, lease) {
      const settings = { retryCount: wait === Infinity ? -1 : Math.ceil(wait / retryDelay) };
      try {
        return await (lease > 0 ? fixed(redlock, key, lease, settings) : renewed(redlock, key, settings));
      } catch (error) {
        throw (await isBusy(error)) ? new Busy() : error;
      }
    },
  };
}

async function fixed(redlock, key, lease, settings) {
  let lock = await redlock.acquire([key], lease, settings);
  return {
    async renew(lease) {
      lock = await lock.extend(lease);
    },
    release: () => lock.release(),
    held: () => lock.expiration > Date.now(),
  };
}

// Only `using` renews a lock, for as long as its routine runs. This routine runs until the release.
function renewed(redlock, key, settings) {
  return new Promise((granted, refused) => {
    const whole = redlock.using([key], RENEWED_LEASE, settings, (signal) => {
      return new Promise((finish) => {
        granted({
          renew: () => Promise.reject(new Error("unsupported: redlock extends this lock by itself")),
          release: () => {
            finish();
            return whole;
          },
          held: () => !signal.aborted,
        });
      });
    });
    whole.catch(refused);
  });
}

async function isBusy(error) {
  if (!(error instanceof ExecutionError) || error.attempts.length === 0) return false;
  const { votesAgainst } = await error.attempts.at(-1);
  return [...votesAgainst.values()].every((reason) => reason instanceof ResourceLockedError);
}
