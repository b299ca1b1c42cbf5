package peer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/** Runs Redisson's lock for the Rust workspace. Implements the line protocol of ../README.md. */
public final class Main {
    private final Interop interop;
    private final Bench bench;

    private Main(RedissonClient client) {
        interop = new Interop(client);
        bench = new Bench(client);
    }

    public static void main(String[] args) throws IOException {
        if (args.length != 2 || !args[0].equals("redisson")) {
            System.err.println("usage: peer redisson REDIS_URL");
            System.exit(2);
        }
        try {
            serve(args[1]);
            // Not shutdown(), which takes seconds, and releases no lock either.
            System.exit(0);
        } catch (RuntimeException e) {
            System.err.println(reason(e));
            System.exit(1);
        }
    }

    private static void serve(String url) throws IOException {
        Config config = new Config();
        String lease = System.getenv("PEER_LEASE");
        if (lease != null) {
            config.setLockWatchdogTimeout(Long.parseLong(lease));
        }
        SingleServerConfig server = config.useSingleServer().setAddress(url);
        String path = URI.create(url).getPath();
        if (path != null && path.length() > 1) {
            server.setDatabase(Integer.parseInt(path.substring(1)));
        }
        // Each key that is waited for needs a subscription. The default of 5 would limit them to 250.
        server.setSubscriptionsPerConnection(50);
        RedissonClient client = Redisson.create(config);
        warmUp(client);
        System.out.printf(
                "ready redisson %s | lease %d s, watchdog (default), woken by pub/sub, pool of %d (default),"
                        + " %d subscription connections of %d subscriptions%n",
                Redisson.class.getPackage().getImplementationVersion(),
                config.getLockWatchdogTimeout() / 1000,
                server.getConnectionPoolSize(),
                server.getSubscriptionConnectionPoolSize(),
                server.getSubscriptionsPerConnection());

        Main main = new Main(client);
        var threads = Executors.newCachedThreadPool();
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (!line.isBlank()) {
                List<String> words = Arrays.asList(line.trim().split("\\s+"));
                threads.execute(() -> main.answer(words));
            }
        }
    }

    /** Long enough for the compiler to optimize acquisitions and releases. */
    private static void warmUp(RedissonClient client) {
        RLock lock = client.getLock("warm:" + ProcessHandle.current().pid());
        for (int i = 0; i < 2000; i++) {
            lock.lock();
            lock.unlock();
        }
    }

    private void answer(List<String> words) {
        String reply;
        try {
            if (words.size() < 2) {
                throw new IllegalArgumentException("a number and a verb are expected");
            }
            reply = answer(words.get(1), new Arguments(words.subList(2, words.size())));
        } catch (Exception e) {
            reply = "error " + reason(e);
        }
        String line = words.get(0) + " " + reply + "\n";
        synchronized (System.out) {
            System.out.print(line);
            System.out.flush();
        }
    }

    private String answer(String verb, Arguments a) throws Exception {
        switch (verb) {
            case "acquire":
                return interop.acquire(a.word(0), a.number(1), a.number(2)) ? "ok" : "busy";
            case "acquire-all":
                return interop.acquireAll(a.word(0), a.number(1), a.number(2)) ? "ok" : "busy";
            case "acquire-kind":
                return interop.acquireKind(a.word(0), a.word(1)) ? "ok" : "busy";
            case "release-kind":
                interop.releaseKind(a.word(0), a.word(1));
                return "ok";
            case "renew":
                interop.renew(a.word(0), a.number(1));
                return "ok";
            case "again":
                return interop.again(a.word(0)) ? "ok" : "busy";
            case "release":
                interop.release(a.word(0));
                return "ok";
            case "force":
                interop.force(a.word(0));
                return "ok";
            case "held":
                return interop.held(a.word(0)) ? "ok yes" : "ok no";
            case "owner":
                return interop.taken(a.word(0)) ? "ok yes" : "ok no";
            case "count":
                interop.count(a.word(0), a.word(1), (int) a.number(2), a.number(3));
                return "ok";
            case "crash":
                Runtime.getRuntime().halt(137);
                return "unreachable";
            case "run":
                return "ok " + bench.run(a.word(0), (int) a.number(1), a.number(2), a.number(3), Keys.of(a.from(4)));
            case "hold":
                bench.hold((int) a.number(0), a.number(1));
                return "ok";
            case "waiters":
                bench.waiters(a.word(0), (int) a.number(1));
                return "ok";
            case "drain":
                return "ok " + bench.drain(a.word(0));
            default:
                throw new IllegalArgumentException("unknown verb " + verb);
        }
    }

    /** Describes an error in one line. */
    static String reason(Throwable e) {
        while ((e instanceof ExecutionException || e instanceof CompletionException) && e.getCause() != null) {
            e = e.getCause();
        }
        return e.toString().replaceAll("\\s+", " ");
    }

    private record Arguments(List<String> words) {
        String word(int i) {
            return from(i).get(0);
        }

        long number(int i) {
            return Long.parseLong(word(i));
        }

        List<String> from(int i) {
            if (i >= words.size()) {
                throw new IllegalArgumentException("too few arguments");
            }
            return words.subList(i, words.size());
        }
    }
}
