"""The lock pattern from before Redis 2.6.12: SETNX, GET and GETSET of the time at which the lock expires.

The interface is that of redis-py's lock."""

import time

from redis.exceptions import LockError, LockNotOwnedError

DELAY = 0.1  # seconds between two attempts, as in redis-py


class TimestampLock:
    def __init__(self, client, key, timeout):
        self.client, self.key, self.timeout = client, key, timeout
        self.expires = None

    def acquire(self, blocking=True, blocking_timeout=None):
        end = None if blocking_timeout is None else time.monotonic() + blocking_timeout
        while not self.take():
            if not blocking or (end is not None and time.monotonic() + DELAY > end):
                return False
            time.sleep(DELAY)
        return True

    def take(self):
        expires = now() + round(self.timeout * 1000)
        if self.client.setnx(self.key, expires):
            self.expires = expires
            return True
        seen = self.client.get(self.key)
        # The first client to swap has the lock. Later ones overwrite its time, which is the weakness of the pattern.
        if seen is None or int(seen) >= now() or self.client.getset(self.key, expires) != seen:
            return False
        self.expires = expires
        return True

    def owned(self):
        value = self.client.get(self.key)
        return value is not None and int(value) == self.expires > now()

    def locked(self):
        return bool(self.client.exists(self.key))

    def extend(self, timeout, replace_ttl=True):
        if not self.owned():
            raise LockNotOwnedError("not the owner any more")
        expires = now() + round(timeout * 1000)
        self.client.set(self.key, expires)
        self.expires = expires

    def release(self):
        # If the time has passed, another client may be about to take the lock.
        if not self.owned():
            raise LockNotOwnedError("not the owner any more")
        self.client.delete(self.key)

    def __enter__(self):
        if not self.acquire():
            raise LockError("not acquired")
        return self

    def __exit__(self, *_):
        self.release()


def now():
    return time.time_ns() // 1_000_000
