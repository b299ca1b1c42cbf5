package peer;

import java.io.DataOutputStream;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/** The grants of one task: three times in nanoseconds (System.nanoTime()), and the task and the key. */
final class Records {
    private long[] numbers = new long[4 * 256];
    private int used;

    void add(long requested, long granted, long released, int key, int task) {
        if (used == numbers.length) {
            numbers = Arrays.copyOf(numbers, 2 * used);
        }
        numbers[used++] = requested;
        numbers[used++] = granted;
        numbers[used++] = released;
        numbers[used++] = (long) key << 32 | task;
    }

    static long write(String file, List<Records> all) throws IOException {
        long grants = 0;
        try (var out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(Path.of(file))))) {
            for (Records records : all) {
                grants += records.used / 4;
                for (int i = 0; i < records.used; i++) {
                    out.writeLong(Long.reverseBytes(records.numbers[i]));
                }
            }
        }
        return grants;
    }
}
