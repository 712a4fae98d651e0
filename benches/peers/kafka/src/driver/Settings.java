package driver;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.Collectors;

/** What the caller asked for: a case and {@code key=value} arguments, with their defaults. */
final class Settings {
    private final String name;
    private final Map<String, String> values = new HashMap<>();

    /** When everything must have ended, in ms since the epoch. */
    private final long deadlineMs;

    Settings(String name, String[] arguments) {
        this.name = name;
        for (var argument : arguments) {
            var parts = argument.split("=", 2);
            if (parts.length != 2) {
                throw new IllegalArgumentException("not key=value: " + argument);
            }
            values.put(parts[0], parts[1]);
        }
        deadlineMs = System.currentTimeMillis() + 1_000 * number("deadline", 300);
    }

    /** The case. */
    String name() {
        return name;
    }

    String bootstrap() {
        return text("bootstrap");
    }

    /** An existing folder for the scheduler's data. */
    Path work() {
        return Path.of(text("work")).toAbsolutePath();
    }

    int count() {
        return (int) number("count", 100_000);
    }

    /** Live registrations a second. */
    int rate() {
        return (int) number("rate", 2_000);
    }

    /** Seconds of measuring, the warm-up apart. */
    int seconds() {
        return (int) number("seconds", 10);
    }

    /** Registrations due within the next 24 h. */
    int pending() {
        return (int) number("pending", 0);
    }

    int partitions() {
        return (int) number("partitions", 4);
    }

    int payloadBytes() {
        return (int) number("payload", 300);
    }

    /** Keys in capitals: what the scheduler finds in its environment. */
    Map<String, String> environment() {
        return values.entrySet().stream()
                .filter(entry -> entry.getKey().matches("[A-Z_]+"))
                .collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
    }

    /** Registrations a second that the scheduler surely takes in: sets when a burst is due. */
    int intake(int ours) {
        return (int) number("intake", ours);
    }

    long deadlineMs() {
        return deadlineMs;
    }

    private long number(String key, long ours) {
        return Long.parseLong(values.getOrDefault(key, Long.toString(ours)));
    }

    private String text(String key) {
        var value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException(key + "= is missing");
        }
        return value;
    }
}
