// What both libraries are asked for. `acquire(key, wait, lease)` tries once if `wait` is 0, uses the library's renewal
// if `lease` is 0, throws `Busy`, and gives `{ renew(lease), release(), held() }`.

export class Busy extends Error {}

export const FOREVER = Infinity;

// The lease of a benchmark: the library's own renewal, as both have one.
export const OWN_LEASE = 0;
