package peer;

import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/** What a task acquires: a lock of the kind that the key in a command names. */
interface Lockable {
    Pattern PERMITS = Pattern.compile("(\\d+)/(\\d+):(.*)");
    Pattern SEVERAL = Pattern.compile("(\\d+)-keys:(.*)");

    /** Waits for at most this time. */
    boolean acquire(long nanos) throws InterruptedException;

    void release();

    static Lockable of(RedissonClient client, String key) {
        Matcher permits = PERMITS.matcher(key);
        if (permits.matches()) {
            RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(permits.group(3));
            semaphore.trySetPermits(Integer.parseInt(permits.group(2)));
            return new Permits(semaphore, Integer.parseInt(permits.group(1)));
        }
        Matcher several = SEVERAL.matcher(key);
        if (several.matches()) {
            RLock[] locks = IntStream.range(0, Integer.parseInt(several.group(1)))
                    .mapToObj(i -> client.getLock(several.group(2) + ":" + i))
                    .toArray(RLock[]::new);
            return of(client.getMultiLock(locks));
        }
        if (key.startsWith("read:")) {
            return of(client.getReadWriteLock(key.substring("read:".length())).readLock());
        }
        if (key.startsWith("write:")) {
            return of(client.getReadWriteLock(key.substring("write:".length())).writeLock());
        }
        return of(client.getLock(key));
    }

    static Lockable of(RLock lock) {
        return new Lockable() {
            @Override
            public boolean acquire(long nanos) throws InterruptedException {
                return lock.tryLock(nanos, TimeUnit.NANOSECONDS);
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    /** Permits of a semaphore with the lease of a lock, because the library does not renew them. */
    final class Permits implements Lockable {
        private final RPermitExpirableSemaphore semaphore;
        private final int count;
        private List<String> held;

        Permits(RPermitExpirableSemaphore semaphore, int count) {
            this.semaphore = semaphore;
            this.count = count;
        }

        @Override
        public boolean acquire(long nanos) throws InterruptedException {
            held = semaphore.tryAcquire(count, TimeUnit.NANOSECONDS.toMillis(nanos), 30_000, TimeUnit.MILLISECONDS);
            return !held.isEmpty();
        }

        @Override
        public void release() {
            semaphore.release(held);
        }
    }
}
