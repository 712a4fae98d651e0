import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/**
 * Compares what was written with what a read_committed reader saw. The triggers topic itself says what
 * was registered and in which order; nothing that Orloj answers excuses a fire.
 */
final class Judge {
    enum Violation {
        /** Acknowledged and not in the log, or aborted and in it. */
        LOG,
        LOST,
        /** An occurrence of a schedule is missing. */
        GAP,
        DUPLICATE,
        EARLY,
        /** Later than the case allows. */
        TOO_LATE,
        FIRED_AFTER_CANCEL,
        FIRED_AFTER_REPLACEMENT,
        FIRED_OF_ABORTED,
        /** Fired, and no record says so. */
        UNREGISTERED,
        WRONG_RECORD,
        /** Two fires of one trigger, in one partition, in the wrong order. */
        ORDER,
        DEAD_LETTER,
        /** A process ended that was not killed, or did not end when it was asked to. */
        ENDED,
        /** The load lacks a kind of trigger: the case proves less than it says. */
        LOAD,
    }

    /** A record as a read_committed reader sees it. */
    record Seen(int partition, long offset, long timestamp, long receivedAt, byte[] key, byte[] value,
            List<Map.Entry<String, String>> headers) {
        String header(String name) {
            return headers.stream().filter(h -> h.getKey().equals(name)).map(Map.Entry::getValue)
                    .findFirst().orElse("");
        }
    }

    /** A registration in the log, and the record of the same id that follows it, or null. */
    private record Registered(Command command, Seen record, Seen next, Command nextCommand) {}

    /** A cancel wins that was written so long before the due time, in ms (docs/internals/protocol.md). */
    private static final long IN_TIME = 1_000;
    private static final int EXAMPLES = 5;

    private final Map<Violation, Integer> counts = new EnumMap<>(Violation.class);
    private final Map<Violation, List<String>> examples = new EnumMap<>(Violation.class);
    private final Map<String, Registered> byFirePrefix = new HashMap<>();
    private final Map<String, Command> byNumber = new HashMap<>();
    private final Set<String> fired = new HashSet<>();
    private final List<Long> lateness = new ArrayList<>();
    private final int partitions;
    private final long latest;
    int expected;
    int undecided;

    /** Fires may be late by so many ms; the target topic has so many partitions. */
    Judge(long latest, int partitions) {
        this.latest = latest;
        this.partitions = partitions;
    }

    Judge judge(Collection<Command> commands, Collection<Seen> log, Collection<Seen> fires) {
        commands.forEach(command -> byNumber.put(Integer.toString(command.number), command));
        readLog(commands, log);
        fires.forEach(this::judgeFire);
        byFirePrefix.values().forEach(this::judgeMissing);
        judgeOrder(fires);
        return this;
    }

    void add(Violation violation, String what) {
        counts.merge(violation, 1, Integer::sum);
        var shown = examples.computeIfAbsent(violation, any -> new ArrayList<>());
        if (shown.size() < EXAMPLES) {
            shown.add(what);
        }
    }

    int count(Violation violation) {
        return counts.getOrDefault(violation, 0);
    }

    Map<Violation, Integer> counts() {
        return counts;
    }

    Map<Violation, List<String>> examples() {
        return examples;
    }

    int fires() {
        return fired.size();
    }

    /** How late the given share of the fires was at most, in ms. */
    long lateness(double share) {
        var sorted = lateness.stream().sorted().toList();
        return sorted.isEmpty() ? 0 : sorted.get((int) Math.ceil(share * sorted.size()) - 1);
    }

    private void readLog(Collection<Command> commands, Collection<Seen> log) {
        var numbers = new HashSet<String>();
        var byId = new HashMap<String, List<Seen>>();
        for (var record : log) {
            var number = record.header(Command.NUMBER);
            if (!byNumber.containsKey(number) || !numbers.add(number)) {
                add(Violation.LOG, "there is a record that was not written, or twice: " + number);
                continue;
            }
            byId.computeIfAbsent(byNumber.get(number).id, id -> new ArrayList<>()).add(record);
        }
        for (var command : commands) {
            boolean isThere = numbers.contains(Integer.toString(command.number));
            if (command.answer == Command.Answer.ACKNOWLEDGED && !isThere
                    || command.answer == Command.Answer.ABORTED && isThere) {
                add(Violation.LOG, command.answer + ", in the log: " + isThere + ": " + command.id);
            }
        }
        byId.values().forEach(this::registerAll);
    }

    private void registerAll(List<Seen> recordsOfId) {
        recordsOfId.sort(Comparator.comparingLong(Seen::offset));
        for (int i = 0; i < recordsOfId.size(); i++) {
            var record = recordsOfId.get(i);
            var next = i + 1 < recordsOfId.size() ? recordsOfId.get(i + 1) : null;
            var command = byNumber.get(record.header(Command.NUMBER));
            var nextCommand = next == null ? null : byNumber.get(next.header(Command.NUMBER));
            if (command.kind != Command.Kind.CANCEL) {
                byFirePrefix.put(command.id + ":" + record.offset,
                        new Registered(command, record, next, nextCommand));
            }
        }
    }

    private void judgeFire(Seen fire) {
        var fireId = fire.header("orloj-fire-id");
        var at = fireId.lastIndexOf(':');
        var registered = byFirePrefix.get(at < 0 ? "" : fireId.substring(0, at));
        if (registered == null) {
            var command = byNumber.get(fire.header(Command.NUMBER));
            add(command != null && command.answer == Command.Answer.ABORTED
                    ? Violation.FIRED_OF_ABORTED : Violation.UNREGISTERED, fireId);
            return;
        }
        var dueTimes = registered.command.dueTimes(registered.record.timestamp);
        var occurrence = Integer.parseInt(fireId.substring(at + 1));
        if (occurrence < 0 || occurrence >= dueTimes.size()) {
            add(Violation.UNREGISTERED, fireId);
            return;
        }
        if (!fired.add(fireId)) {
            add(Violation.DUPLICATE, fireId);
            return;
        }
        long due = dueTimes.get(occurrence);
        if (mustNotFire(registered, due)) {
            add(registered.nextCommand.kind == Command.Kind.CANCEL ? Violation.FIRED_AFTER_CANCEL
                    : Violation.FIRED_AFTER_REPLACEMENT, fireId);
        }
        judgeContent(fire, fireId, registered.command, due);
        judgeTime(fire, fireId, registered, due);
    }

    private void judgeContent(Seen fire, String fireId, Command command, long due) {
        var key = command.fireKey().getBytes(java.nio.charset.StandardCharsets.UTF_8);
        var headers = List.of(Map.entry(Command.NUMBER, Integer.toString(command.number)),
                Map.entry("orloj-fire-id", fireId), Map.entry("orloj-due", Long.toString(due)));
        if (!Arrays.equals(fire.key, key)) {
            add(Violation.WRONG_RECORD, fireId + " has another key");
        }
        if (!Arrays.equals(fire.value, command.payload)) {
            add(Violation.WRONG_RECORD, fireId + " has another value");
        }
        if (!fire.headers.equals(headers)) {
            add(Violation.WRONG_RECORD, fireId + " has the headers " + fire.headers + ", not "
                    + headers);
        }
        if (fire.partition != BuiltInPartitioner.partitionForKey(key, partitions)) {
            add(Violation.WRONG_RECORD, fireId + " is in partition " + fire.partition);
        }
    }

    private void judgeTime(Seen fire, String fireId, Registered registered, long due) {
        if (fire.timestamp < due || fire.receivedAt < due) {
            add(Violation.EARLY, fireId + " by " + (due - Math.min(fire.timestamp, fire.receivedAt)));
        }
        // Nothing can fire before its registration is there for read_committed readers.
        var there = Math.max(registered.record.timestamp, registered.command.committedAt);
        var late = Math.max(0, fire.receivedAt - Math.max(due, there));
        lateness.add(late);
        if (late > latest) {
            add(Violation.TOO_LATE, fireId + " by " + late + " ms");
        }
    }

    private void judgeMissing(Registered registered) {
        var command = registered.command;
        var prefix = command.id + ":" + registered.record.offset + ":";
        var dueTimes = command.dueTimes(registered.record.timestamp);
        boolean laterFired = false;
        for (int occurrence = dueTimes.size() - 1; occurrence >= 0; occurrence--) {
            long due = dueTimes.get(occurrence);
            boolean isFired = fired.contains(prefix + occurrence);
            boolean must = laterFired || mustFire(registered, due);
            expected += must ? 1 : 0;
            undecided += must || mustNotFire(registered, due) ? 0 : 1;
            if (must && !isFired) {
                add(command.kind == Command.Kind.ONCE ? Violation.LOST : Violation.GAP,
                        prefix + occurrence);
            }
            laterFired |= isFired;
        }
    }

    private static boolean mustNotFire(Registered registered, long due) {
        return registered.next != null && registered.next.timestamp <= due - IN_TIME;
    }

    /** What follows long after the due time is too late to stop the fire. */
    private boolean mustFire(Registered registered, long due) {
        return registered.next == null || registered.next.timestamp >= due + latest;
    }

    private void judgeOrder(Collection<Seen> fires) {
        var previous = new HashMap<String, long[]>();
        var sorted = new ArrayList<>(fires);
        sorted.sort(Comparator.comparingInt(Seen::partition).thenComparingLong(Seen::offset));
        for (var fire : sorted) {
            var parts = fire.header("orloj-fire-id").split(":");
            if (parts.length != 3) {
                continue;
            }
            var place = new long[] {Long.parseLong(parts[1]), Long.parseLong(parts[2])};
            var before = previous.put(fire.partition + " " + parts[0], place);
            // An equal one is a duplicate, which is counted already.
            if (before != null && Arrays.compare(before, place) > 0) {
                add(Violation.ORDER, fire.header("orloj-fire-id"));
            }
        }
    }
}
