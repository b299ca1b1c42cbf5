"""Runs redis-py's lock for the Rust workspace. Implements the line protocol of ../README.md."""

import itertools
import os
import random
import signal
import sys
import threading
import time
from array import array

import redis

from timestamp import DELAY, TimestampLock

LEASE = 30  # seconds, in a benchmark, because the library does not renew
LEEWAY = 1.5  # seconds that a task may continue to wait after the end of a run
POOL = 64


class Busy(Exception):
    """Another owner has the lock."""


class Unsupported(Exception):
    """The library does not renew."""


class Peer:
    def __init__(self, name, url):
        self.name = name
        # A blocking pool. The default one opens a connection for each thread, or fails.
        pool = redis.BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
        self.client = redis.Redis(connection_pool=pool)
        self.held = {}
        self.waiting = []

    def lock(self, key, timeout=LEASE, thread_local=True):
        if self.name == "timestamp":
            return TimestampLock(self.client, key, timeout)
        return self.client.lock(key, timeout=timeout, thread_local=thread_local)

    def warm_up(self):
        for _ in range(200):
            with self.lock(f"warm:{os.getpid()}", timeout=LEASE):
                pass

    def answer(self, number, verb="", *args):
        try:
            does = getattr(self, f"do_{verb}", None)
            if does is None:
                raise ValueError(f"unknown verb {verb}")
            result = does(*args)
            reply = "ok" if result is None else f"ok {result}"
        except Busy:
            reply = "busy"
        except Unsupported:
            reply = "error unsupported: this lock does not renew by itself"
        except Exception as error:
            reply = f"error {reason(error)}"
        sys.stdout.write(f"{number} {reply}\n")  # in one piece, unlike print
        sys.stdout.flush()

    # For the interop suite

    def do_acquire(self, key, wait, lease):
        wait, lease = millis(wait), millis(lease)
        if not lease:
            raise Unsupported
        # Each command runs on its own thread, so another thread releases the lock.
        lock = self.lock(key, timeout=lease, thread_local=False)
        if not lock.acquire(blocking=wait > 0, blocking_timeout=wait):
            raise Busy
        self.held[key] = lock

    def do_renew(self, key, lease):
        self.recall(key).extend(millis(lease), replace_ttl=True)

    def do_release(self, key):
        lock = self.recall(key)
        del self.held[key]
        lock.release()

    def do_force(self, key):
        self.client.delete(key)

    def do_held(self, key):
        return yes_or_no(self.recall(key).owned())

    def do_owner(self, key):
        return yes_or_no(self.lock(key).locked())

    def do_count(self, key, counter, workers, times):
        faults = Faults()

        def worker(_):
            try:
                for _ in range(int(times) // int(workers)):
                    with self.lock(key, timeout=LEASE):
                        self.client.set(counter, int(self.client.get(counter) or 0) + 1)
            except redis.RedisError as error:
                faults.add(error)

        join(start(int(workers), worker))
        faults.check()

    def do_crash(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def recall(self, key):
        if key not in self.held:
            raise KeyError(f"{key} is not held here")
        return self.held[key]

    # For the benchmark

    def do_run(self, file, tasks, during, work, *names):
        tasks, work = int(tasks), int(work) / 1e6
        draw = keys(names)
        records, faults = array("Q"), Faults()
        end = time.monotonic() + millis(during)

        def run(task):
            while time.monotonic() < end:
                number, key = draw(task)
                lock = self.lock(key, timeout=LEASE)
                try:
                    requested = time.monotonic_ns()
                    if not lock.acquire(blocking_timeout=end + LEEWAY - time.monotonic()):
                        return
                    granted = time.monotonic_ns()
                    if work:
                        time.sleep(work)
                    records.extend((requested, granted, time.monotonic_ns(), number << 32 | task))
                    lock.release()
                except redis.RedisError as error:
                    faults.add(error)

        join(start(tasks, run))
        return write(file, [records], [faults])

    def do_hold(self, count, during):
        raise Unsupported

    def do_waiters(self, key, count):
        """Starts tasks that each acquire the lock once."""
        records, faults = array("Q"), Faults()

        def wait(task):
            lock = self.lock(key, timeout=LEASE)
            try:
                requested = time.monotonic_ns()
                lock.acquire()
                records.extend((requested, time.monotonic_ns(), time.monotonic_ns(), task))
                lock.release()
            except redis.RedisError as error:
                faults.add(error)

        self.waiting.append((start(int(count), wait), records, faults))
        # This attempt is sent after those of the waiters. If it is refused, they have most likely been refused, too.
        lock = self.lock(key, timeout=LEASE)
        if lock.acquire(blocking=False):
            lock.release()
            raise ValueError(f"nobody held {key}")

    def do_drain(self, file):
        groups, self.waiting = self.waiting, []
        for threads, _, _ in groups:
            join(threads)
        return write(file, [records for _, records, _ in groups], [faults for _, _, faults in groups])


def start(count, work):
    """Starts threads, and passes its number to each."""
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    for thread in threads:
        thread.join()


class Faults:
    """Keeps the first error and the number of errors."""

    def __init__(self):
        self.count, self.first, self.lock = 0, None, threading.Lock()

    def add(self, error):
        with self.lock:
            self.count += 1
            self.first = self.first or error
        time.sleep(0.01)  # otherwise, a server that is down would get requests in a tight loop

    def check(self):
        if self.count:
            raise RuntimeError(f"{self.count} failed, the first: {reason(self.first)}")


def write(file, lists, faults):
    """Writes the records: requested, granted, released, task and key, as 64-bit little-endian integers."""
    with open(file, "wb") as out:
        for records in lists:
            if sys.byteorder == "big":
                records.byteswap()
            records.tofile(out)
    for each in faults:
        each.check()
    return sum(map(len, lists)) // 4


def keys(names):
    """Returns the function that draws a task's next key, with the key's number."""
    if not names:
        raise ValueError("too few arguments")
    if names[0].startswith("zipf:"):
        count = int(names[0].removeprefix("zipf:"))
        sums = list(itertools.accumulate(1 / (i + 1) for i in range(count)))

        def draw(_task):
            number = random.choices(range(count), cum_weights=sums)[0]
            return number, f"z{number}"

        return draw
    return lambda task: (task % len(names), names[task % len(names)])


def millis(word):
    return int(word) / 1000


def yes_or_no(yes):
    return "yes" if yes else "no"


def reason(error):
    return " ".join(f"{type(error).__name__}: {error}".split())


def main(name="", url=""):
    if name not in ("redis-py", "timestamp") or not url:
        sys.exit("usage: main.py redis-py|timestamp REDIS_URL")
    peer = Peer(name, url)
    try:
        peer.warm_up()
    except redis.RedisError as error:
        sys.exit(f"cannot acquire a first lock: {reason(error)}")
    print(
        f"ready {name} {redis.__version__} | lease {LEASE} s, tries without end every {DELAY * 1000:.0f} ms (default), "
        f"threads, pool of {POOL}, hiredis",
        flush=True,
    )
    for line in sys.stdin:
        if words := line.split():
            threading.Thread(target=peer.answer, args=words, daemon=True).start()
    os._exit(0)  # without waiting for the other threads


# Many threads should not need more memory than necessary.
threading.stack_size(256 * 1024)
main(*sys.argv[1:])
