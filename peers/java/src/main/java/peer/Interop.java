package peer;

import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/** Single operations, and the counter that shows whether locks exclude. */
final class Interop {
    /** Owner ids are thread ids. Each acquisition has its own, so that any thread can release it. */
    private static final AtomicLong OWNERS = new AtomicLong(1L << 32);

    private final RedissonClient client;
    private final Map<String, Held> held = new ConcurrentHashMap<>();

    private record Held(RLock lock, long owner, int holds) {}

    Interop(RedissonClient client) {
        this.client = client;
    }

    static long newOwner() {
        return OWNERS.getAndIncrement();
    }

    boolean acquire(String key, long wait, long lease) throws InterruptedException, ExecutionException {
        return acquire(key, client.getLock(key), wait, lease);
    }

    /** Acquires the locks of these keys, which are separated by commas, in their order. They are released together. */
    boolean acquireAll(String keys, long wait, long lease) throws InterruptedException, ExecutionException {
        RLock[] locks = Arrays.stream(keys.split(",")).map(client::getLock).toArray(RLock[]::new);
        return acquire(keys, client.getMultiLock(locks), wait, lease);
    }

    /** Acquires a lock of another kind for a minute, without waiting, or one of three permits. */
    boolean acquireKind(String kind, String key) throws InterruptedException, ExecutionException {
        switch (kind) {
            case "semaphore":
                client.getSemaphore(key).trySetPermits(3);
                return client.getSemaphore(key).tryAcquire();
            case "permits":
                client.getPermitExpirableSemaphore(key).trySetPermits(3);
                return client.getPermitExpirableSemaphore(key).tryAcquire(0, 60_000, TimeUnit.MILLISECONDS) != null;
            default:
                return acquire(kind + " " + key, lockOf(kind, key), 0, 60_000);
        }
    }

    /** Releases a lock of another kind. */
    void releaseKind(String kind, String key) throws InterruptedException, ExecutionException {
        release(kind + " " + key);
    }

    private RLock lockOf(String kind, String key) {
        switch (kind) {
            case "read":
                return client.getReadWriteLock(key).readLock();
            case "write":
                return client.getReadWriteLock(key).writeLock();
            case "fair":
                return client.getFairLock(key);
            case "fenced":
                return client.getFencedLock(key);
            case "spin":
                return client.getSpinLock(key);
            default:
                throw new IllegalArgumentException("no such kind: " + kind);
        }
    }

    private boolean acquire(String key, RLock lock, long wait, long lease)
            throws InterruptedException, ExecutionException {
        long owner = newOwner();
        // -1 selects the watchdog.
        boolean granted = lock.tryLockAsync(wait, lease == 0 ? -1 : lease, TimeUnit.MILLISECONDS, owner).get();
        if (granted) {
            held.put(key, new Held(lock, owner, 1));
        }
        return granted;
    }

    /** Redisson's lock has no call for a renewal. Re-entering the lock would count as a second hold. */
    void renew(String key, long lease) {
        Held mine = recall(key);
        if (!mine.lock.isHeldByThread(mine.owner)) {
            throw new IllegalMonitorStateException("not the owner any more");
        }
        client.getKeys().expire(Duration.ofMillis(lease), key);
    }

    /** Acquires a lock that is held here once more. It is free after as many releases. */
    boolean again(String key) throws InterruptedException, ExecutionException {
        Held mine = recall(key);
        boolean granted = mine.lock.tryLockAsync(0, -1, TimeUnit.MILLISECONDS, mine.owner).get();
        if (granted) {
            held.put(key, new Held(mine.lock, mine.owner, mine.holds + 1));
        }
        return granted;
    }

    void release(String key) throws InterruptedException, ExecutionException {
        Held mine = recall(key);
        if (mine.holds > 1) {
            held.put(key, new Held(mine.lock, mine.owner, mine.holds - 1));
        } else {
            held.remove(key, mine);
        }
        mine.lock.unlockAsync(mine.owner).get();
    }

    void force(String key) {
        client.getLock(key).forceUnlock();
    }

    boolean held(String key) {
        Held mine = recall(key);
        return mine.lock.isHeldByThread(mine.owner);
    }

    boolean taken(String key) {
        return client.getLock(key).isLocked();
    }

    void count(String key, String counter, int workers, long times) throws InterruptedException {
        RBucket<String> value = client.getBucket(counter, StringCodec.INSTANCE);
        Faults faults = new Faults();
        Thread[] threads = new Thread[workers];
        for (int i = 0; i < workers; i++) {
            threads[i] = new Thread(() -> {
                try {
                    RLock lock = client.getLock(key);
                    for (long round = 0; round < times / workers; round++) {
                        lock.lock();
                        try {
                            String before = value.get();
                            value.set(Long.toString(before == null ? 1 : Long.parseLong(before) + 1));
                        } finally {
                            lock.unlock();
                        }
                    }
                } catch (RuntimeException e) {
                    faults.add(e);
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        faults.check();
    }

    private Held recall(String key) {
        Held mine = held.get(key);
        if (mine == null) {
            throw new IllegalStateException(key + " is not held here");
        }
        return mine;
    }
}
