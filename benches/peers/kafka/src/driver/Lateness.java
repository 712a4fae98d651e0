package driver;

/** How late fires came, counted by the millisecond. */
final class Lateness {
    /** Later than that is as bad as that. */
    private static final int WORST_MS = 600_000;

    private final long[] counts = new long[WORST_MS + 1];
    private long total;
    private long early;

    void add(long ms) {
        if (ms < 0) {
            early++;
        }
        counts[(int) Math.max(0, Math.min(WORST_MS, ms))]++;
        total++;
    }

    long total() {
        return total;
    }

    /** Fires before their time. */
    long early() {
        return early;
    }

    /** All but so many in a thousand came sooner. */
    int allBut(int perThousand) {
        var later = total * perThousand / 1_000;
        for (var ms = WORST_MS; ms > 0; ms--) {
            later -= counts[ms];
            if (later < 0) {
                return ms;
            }
        }
        return 0;
    }
}
