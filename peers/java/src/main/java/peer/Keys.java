package peer;

import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** The choice of the next key of a task. */
interface Keys {
    int number(int task, Random random);

    String name(int number);

    static Keys of(List<String> names) {
        if (names.get(0).startsWith("zipf:")) {
            return new Zipf(Integer.parseInt(names.get(0).substring("zipf:".length())));
        }
        return new Keys() {
            @Override
            public int number(int task, Random random) {
                return task % names.size();
            }

            @Override
            public String name(int number) {
                return names.get(number);
            }
        };
    }

    /** Exponent 1: the second key is drawn half as often as the first, and the third a third as often. */
    final class Zipf implements Keys {
        private final double[] sums;

        Zipf(int count) {
            sums = new double[count];
            double sum = 0;
            for (int i = 0; i < count; i++) {
                sum += 1.0 / (i + 1);
                sums[i] = sum;
            }
        }

        @Override
        public int number(int task, Random random) {
            int place = Arrays.binarySearch(sums, random.nextDouble() * sums[sums.length - 1]);
            return place < 0 ? -place - 1 : place;
        }

        @Override
        public String name(int number) {
            return "z" + number;
        }
    }
}
