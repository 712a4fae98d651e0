import java.util.*;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/**
 * Compares what was written with what a read_committed reader saw. The triggers topic itself says
 * what was registered and in which order; nothing that Orloj answers excuses a fire.
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
        /** Fired without a registration. */
        UNREGISTERED,
        /** Another key, value, header or partition than was promised. */
        WRONG_RECORD,
        /** Two fires of one trigger in one partition, the later one first. */
        ORDER,
        DEAD_LETTER,
        /** A process ended that was not killed, or did not end when it was asked to. */
        ENDED,
        /** The load had no trigger of some kind: the case proves less than it says. */
        LOAD,
    }

    /** A record as a read_committed reader sees it. */
    record Seen(int partition, long offset, long timestamp, long receivedAt, byte[] key,
            byte[] value, List<Map.Entry<String, String>> headers) {
        String header(String name) {
            return headers.stream().filter(header -> header.getKey().equals(name))
                    .map(Map.Entry::getValue).findFirst().orElse("");
        }
    }

    /** A registration in the log, and the record of the same id after it, or nulls. */
    private record Registered(Command command, Seen record, Seen next, Command nextCommand) {
        List<Long> dueTimes() {
            return command.dueTimes(record.timestamp);
        }
    }

    /** A cancel wins that was written so long before, in ms (docs/internals/protocol.md). */
    private static final long IN_TIME = 1_000;

    final Map<Violation, List<String>> found = new EnumMap<>(Violation.class);
    /** Fires that had to be, and those that a cancel or replacement allows but does not demand. */
    int expected;
    int undecided;
    private final Map<String, Command> byNumber = new HashMap<>();
    /** By trigger id and generation, as in the id of a fire. */
    private final Map<String, Registered> registrations = new HashMap<>();
    private final Set<String> fired = new HashSet<>();
    private final List<Long> lateness = new ArrayList<>();
    private final int partitions;
    private final long latest;

    /** Fires may be late by so many ms; the target topic has so many partitions. */
    Judge(long latest, int partitions) {
        this.latest = latest;
        this.partitions = partitions;
    }

    Judge judge(Collection<Command> commands, Collection<Seen> log, Collection<Seen> fires) {
        commands.forEach(command -> byNumber.put(Integer.toString(command.number), command));
        judgeLog(log);
        fires.forEach(this::judgeFire);
        registrations.values().forEach(this::judgeMissing);
        judgeOrder(fires);
        return this;
    }

    void add(Violation violation, String what) {
        found.computeIfAbsent(violation, any -> new ArrayList<>()).add(what);
    }

    int fires() {
        return fired.size();
    }

    /** How late the given share of the fires was at most, in ms. */
    long lateness(double share) {
        var sorted = lateness.stream().sorted().toList();
        return sorted.isEmpty() ? 0 : sorted.get((int) Math.ceil(share * sorted.size()) - 1);
    }

    private void judgeLog(Collection<Seen> log) {
        var numbers = new HashSet<String>();
        var byId = new HashMap<String, List<Seen>>();
        for (var record : log) {
            var number = record.header(Command.NUMBER);
            if (byNumber.containsKey(number) && numbers.add(number)) {
                byId.computeIfAbsent(byNumber.get(number).id, id -> new ArrayList<>()).add(record);
            } else {
                add(Violation.LOG, "there is a record that was not written, or twice: " + number);
            }
        }
        byNumber.forEach((number, command) -> {
            boolean isThere = numbers.contains(number);
            var wrong = isThere ? Command.Answer.ABORTED : Command.Answer.ACKNOWLEDGED;
            if (command.answer == wrong) {
                add(Violation.LOG, command.id + ": " + command.answer + ", in the log: " + isThere);
            }
        });
        byId.values().forEach(this::register);
    }

    private void register(List<Seen> ofOneId) {
        ofOneId.sort(Comparator.comparingLong(Seen::offset));
        for (int i = 0; i < ofOneId.size(); i++) {
            var record = ofOneId.get(i);
            var command = byNumber.get(record.header(Command.NUMBER));
            var next = i + 1 < ofOneId.size() ? ofOneId.get(i + 1) : null;
            var nextCommand = next == null ? null : byNumber.get(next.header(Command.NUMBER));
            var registered = new Registered(command, record, next, nextCommand);
            registrations.put(command.id + ":" + record.offset, registered);
        }
    }

    private void judgeFire(Seen fire) {
        var fireId = fire.header("orloj-fire-id");
        var at = Math.max(0, fireId.lastIndexOf(':'));
        var registered = registrations.get(fireId.substring(0, at));
        var dueTimes = registered == null ? List.<Long>of() : registered.dueTimes();
        var occurrence = registered == null ? 0 : Integer.parseInt(fireId.substring(at + 1));
        if (occurrence < 0 || occurrence >= dueTimes.size()) {
            var command = byNumber.get(fire.header(Command.NUMBER));
            boolean isAborted = command != null && command.answer == Command.Answer.ABORTED;
            add(isAborted ? Violation.FIRED_OF_ABORTED : Violation.UNREGISTERED, fireId);
        } else if (!fired.add(fireId)) {
            add(Violation.DUPLICATE, fireId);
        } else {
            long due = dueTimes.get(occurrence);
            if (mustNotFire(registered, due)) {
                boolean isCancel = registered.nextCommand.kind == Command.Kind.CANCEL;
                add(isCancel ? Violation.FIRED_AFTER_CANCEL : Violation.FIRED_AFTER_REPLACEMENT,
                        fireId);
            }
            judgeContent(fire, fireId, registered.command, due);
            judgeTime(fire, fireId, registered, due);
        }
    }

    private void judgeContent(Seen fire, String fireId, Command command, long due) {
        var key = command.fireKey();
        var headers = List.of(Map.entry(Command.NUMBER, Integer.toString(command.number)),
                Map.entry("orloj-fire-id", fireId), Map.entry("orloj-due", Long.toString(due)));
        var wrong = new ArrayList<String>();
        if (!Arrays.equals(fire.key, key)) {
            wrong.add("another key");
        }
        if (!Arrays.equals(fire.value, command.payload)) {
            wrong.add("another value");
        }
        if (!fire.headers.equals(headers)) {
            wrong.add("headers " + fire.headers + ", not " + headers);
        }
        if (fire.partition != BuiltInPartitioner.partitionForKey(key, partitions)) {
            wrong.add("partition " + fire.partition);
        }
        if (!wrong.isEmpty()) {
            add(Violation.WRONG_RECORD, fireId + ": " + wrong);
        }
    }

    private void judgeTime(Seen fire, String fireId, Registered registered, long due) {
        var earliest = Math.min(fire.timestamp, fire.receivedAt);
        if (earliest < due) {
            add(Violation.EARLY, fireId + " by " + (due - earliest) + " ms");
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
        boolean laterFired = false;
        var dueTimes = registered.dueTimes();
        for (int occurrence = dueTimes.size() - 1; occurrence >= 0; occurrence--) {
            var command = registered.command;
            var fireId = command.id + ":" + registered.record.offset + ":" + occurrence;
            boolean must = laterFired || mustFire(registered, dueTimes.get(occurrence));
            boolean isFired = fired.contains(fireId);
            laterFired |= isFired;
            if (must) {
                expected++;
            } else if (!mustNotFire(registered, dueTimes.get(occurrence))) {
                undecided++;
            }
            if (must && !isFired) {
                add(command.kind == Command.Kind.ONCE ? Violation.LOST : Violation.GAP, fireId);
            }
        }
    }

    private static boolean mustNotFire(Registered registered, long due) {
        return registered.next != null && registered.next.timestamp <= due - IN_TIME;
    }

    /** What was written as long after the due time as a fire may take is too late to stop it. */
    private boolean mustFire(Registered registered, long due) {
        return registered.next == null || registered.next.timestamp >= due + latest;
    }

    private void judgeOrder(Collection<Seen> fires) {
        var previous = new HashMap<String, long[]>();
        var sorted = new ArrayList<>(fires);
        sorted.sort(Comparator.comparingInt(Seen::partition).thenComparingLong(Seen::offset));
        for (var fire : sorted) {
            var parts = fire.header("orloj-fire-id").split(":");
            if (parts.length == 3) {
                var place = new long[] {Long.parseLong(parts[1]), Long.parseLong(parts[2])};
                var before = previous.put(fire.partition + " " + parts[0], place);
                // An equal one is a duplicate, which is counted already.
                if (before != null && Arrays.compare(before, place) > 0) {
                    add(Violation.ORDER, fire.header("orloj-fire-id"));
                }
            }
        }
    }
}
