package driver;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.time.Duration;
import java.time.LocalTime;
import java.util.Map;
import org.apache.kafka.common.header.Headers;

/** How one scheduler wants its registrations, and how its fires say when they were due. */
enum Peer {
    KAFKA_STREAMS("kafka-streams", "4.1.1", 1, 40_000, Map.of()) {
        @Override
        void register(Headers headers, long dueMs, byte[] id, byte[] target) {
            headers.add("orloj-fire-at", decimal(dueMs));
            headers.add("orloj-target-topic", target);
        }

        @Override
        long dueMs(Headers fire) {
            return number(fire.lastHeader("orloj-fire-at").value());
        }
    },
    ETF1("etf1", "0.0.9", 1_000, 15_000, Map.of("cleanup.policy", "compact")) {
        @Override
        void register(Headers headers, long dueMs, byte[] id, byte[] target) {
            headers.add("scheduler-epoch", decimal(dueMs / 1_000));
            headers.add("scheduler-target-topic", target);
            headers.add("scheduler-target-key", id);
        }

        @Override
        long dueMs(Headers fire) {
            return 1_000 * number(fire.lastHeader("scheduler-epoch").value());
        }

        /** It holds what is due until midnight, a little under 3 kB each as measured. */
        @Override
        long pendingBytes(int count) {
            var untilMidnight = Duration.between(LocalTime.now(), LocalTime.MAX);
            return 3_000L * count * untilMidnight.toSeconds() / Duration.ofDays(1).toSeconds();
        }
    };

    private final String title;
    private final String version;
    private final long grainMs;
    private final int intake;
    private final Map<String, String> input;

    Peer(String title, String version, long grainMs, int intake, Map<String, String> input) {
        this.title = title;
        this.version = version;
        this.grainMs = grainMs;
        this.intake = intake;
        this.input = input;
    }

    static Peer named(String title) {
        for (var peer : values()) {
            if (peer.title.equals(title)) {
                return peer;
            }
        }
        throw new IllegalArgumentException("no such peer: " + title);
    }

    /** Writes the instructions of a registration. */
    abstract void register(Headers headers, long dueMs, byte[] id, byte[] target);

    /** When a fire was due. */
    abstract long dueMs(Headers fire);

    String title() {
        return title;
    }

    String version() {
        return version;
    }

    /** Due times are multiples of it. */
    long grainMs() {
        return grainMs;
    }

    /** Registrations a second that it surely takes in. */
    int intake() {
        return intake;
    }

    /** How much memory so many take that are due uniformly within the next 24 h. */
    long pendingBytes(int count) {
        return 0;
    }

    /** What its input topic must have. */
    Map<String, String> input() {
        return input;
    }

    /** The first time at or after one that it can be asked for. */
    long roundUp(long ms) {
        return (ms + grainMs - 1) / grainMs * grainMs;
    }

    private static byte[] decimal(long value) {
        return Long.toString(value).getBytes(US_ASCII);
    }

    private static long number(byte[] digits) {
        long value = 0;
        for (var digit : digits) {
            value = 10 * value + digit - '0';
        }
        return value;
    }
}
