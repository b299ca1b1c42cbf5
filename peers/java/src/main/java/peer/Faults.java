package peer;

/** Keeps the first of many errors, and how many there were. */
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
