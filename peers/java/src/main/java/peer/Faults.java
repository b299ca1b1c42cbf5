package peer;

/** Keeps the first error and the number of errors. */
final class Faults {
    private int count;
    private Throwable first;

    synchronized void add(Throwable e) {
        if (count++ == 0) {
            first = e;
        }
    }

    synchronized void check() {
        if (count > 0) {
            throw new IllegalStateException(count + " failed, the first: " + Main.reason(first));
        }
    }
}
