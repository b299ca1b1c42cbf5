// The interface of both libraries. `acquire(key, wait, lease)` makes one attempt if `wait` is 0, and uses the library's
// renewal if `lease` is 0. It returns `{ renew(lease), release(), held() }`, or throws `Busy`.

export class Busy extends Error {}

export const FOREVER = Infinity;

// The lease of a benchmark: the library's renewal, because both libraries have one.
export const OWN_LEASE = 0;
