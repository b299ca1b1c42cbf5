package peer;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The commands for the benchmark. */
final class Bench {
    /** How long a task may continue to wait after the end of a run. */
    private static final long LEEWAY = TimeUnit.MILLISECONDS.toNanos(1500);

    private static final long STACK = 256 * 1024;

    private final RedissonClient client;
    private final List<Waiters> waiting = new ArrayList<>();

    Bench(RedissonClient client) {
        this.client = client;
    }

    /** One thread per task, because Redisson's locks belong to threads. */
    long run(String file, int tasks, long millis, long workMicros, Keys keys) throws IOException, InterruptedException {
        Faults faults = new Faults();
        List<Records> all = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        for (int i = 0; i < tasks; i++) {
            int task = i;
            Records records = new Records();
            all.add(records);
            Thread thread = new Thread(null, () -> {
                Random random = new Random(task);
                Map<Integer, Lockable> locks = new HashMap<>();
                while (System.nanoTime() - end < 0) {
                    int number = keys.number(task, random);
                    try {
                        Lockable lock = locks.computeIfAbsent(number, key -> Lockable.of(client, keys.name(key)));
                        long requested = System.nanoTime();
                        if (!lock.acquire(end + LEEWAY - requested)) {
                            return;
                        }
                        long granted = System.nanoTime();
                        if (workMicros > 0) {
                            sleepUntil(granted + TimeUnit.MICROSECONDS.toNanos(workMicros));
                        }
                        records.add(requested, granted, System.nanoTime(), number, task);
                        lock.release();
                    } catch (InterruptedException | RuntimeException e) {
                        faults.add(e);
                        // Without a pause, a server that is down would get requests in a tight loop.
                        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(10));
                    }
                }
            }, "task " + i, STACK);
            threads.add(thread);
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        long grants = Records.write(file, all);
        faults.check();
        return grants;
    }

    /** Unlike Thread.sleep, does not round to milliseconds. */
    private static void sleepUntil(long time) {
        for (long left = time - System.nanoTime(); left > 0; left = time - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    void hold(int count, long millis) throws InterruptedException {
        Faults faults = new Faults();
        long owner = Interop.newOwner();
        List<RLock> locks = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            locks.add(client.getLock("h" + i));
        }
        each(locks, faults, lock -> lock.lockAsync(owner));
        Thread.sleep(millis);
        each(locks, faults, lock -> lock.unlockAsync(owner));
        faults.check();
    }

    private interface Call {
        RFuture<?> start(RLock lock);
    }

    /** Limits the number of requests at a time. Otherwise they would queue for connections until they time out. */
    private static void each(List<RLock> locks, Faults faults, Call call) throws InterruptedException {
        Semaphore room = new Semaphore(64);
        for (RLock lock : locks) {
            room.acquire();
            call.start(lock).whenComplete((done, e) -> {
                room.release();
                if (e != null) {
                    faults.add(e);
                }
            });
        }
        room.acquire(64);
    }

    /** Tasks that each acquire the lock once. Futures, because thousands of threads would need more memory than the locks. */
    private static final class Waiters {
        final Records records = new Records();
        final Faults faults = new Faults();
        final CountDownLatch left;

        Waiters(int count) {
            left = new CountDownLatch(count);
        }

        void start(RLock lock, int task) {
            long owner = Interop.newOwner();
            long requested = System.nanoTime();
            lock.lockAsync(owner).whenComplete((done, e) -> {
                if (e != null) {
                    finish(e);
                    return;
                }
                long granted = System.nanoTime();
                synchronized (records) {
                    records.add(requested, granted, System.nanoTime(), 0, task);
                }
                lock.unlockAsync(owner).whenComplete((unlocked, failure) -> finish(failure));
            });
        }

        private void finish(Throwable e) {
            if (e != null) {
                faults.add(e);
            }
            left.countDown();
        }
    }

    void waiters(String key, int count) throws Exception {
        Waiters group = new Waiters(count);
        RLock lock = client.getLock(key);
        for (int task = 0; task < count; task++) {
            group.start(lock, task);
        }
        synchronized (waiting) {
            waiting.add(group);
        }
        // This attempt is sent after those of the waiters. If it is refused, they have most likely been refused, too.
        long owner = Interop.newOwner();
        if (lock.tryLockAsync(0, -1, TimeUnit.MILLISECONDS, owner).get()) {
            lock.unlockAsync(owner).get();
            throw new IllegalStateException("nobody held " + key);
        }
    }

    long drain(String file) throws IOException, InterruptedException {
        List<Waiters> groups;
        synchronized (waiting) {
            groups = List.copyOf(waiting);
            waiting.clear();
        }
        List<Records> all = new ArrayList<>();
        for (Waiters group : groups) {
            group.left.await();
            all.add(group.records);
        }
        long grants = Records.write(file, all);
        for (Waiters group : groups) {
            group.faults.check();
        }
        return grants;
    }
}
