import java.util.*;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Each rule of the judge is seen to complain, and no other with it, before it judges a run. */
final class JudgeTest {
    private static final int PARTITIONS = 6;
    private static final long LATEST = 5_000;
    private static final long DUE = 100_000;

    private final List<Command> commands = new ArrayList<>();
    private final List<Judge.Seen> log = new ArrayList<>();
    private final List<Judge.Seen> fires = new ArrayList<>();

    /** A run without a violation; the offset of a record in the log is its number. */
    private JudgeTest() {
        written(once("plain", DUE), 0);
        written(once("cancelled", DUE), 0);
        written(new Command(2, "cancelled", Command.Kind.CANCEL), DUE - 1_000);
        written(once("replaced", DUE), 0);
        written(once("replaced", DUE + 10), 1);
        var aborted = once("aborted", DUE);
        aborted.answer = Command.Answer.ABORTED;
        commands.add(aborted);
        var recurring = new Command(6, "recurring", Command.Kind.RECURRING);
        recurring.every = 1_000;
        recurring.start = DUE;
        recurring.end = DUE + 3_000;
        written(recurring, 0);
        fire(0, 0, DUE, 0);
        fire(4, 0, DUE + 10, 0);
        fire(6, 0, DUE, 1);
        fire(6, 1, DUE + 1_000, 2);
        fire(6, 2, DUE + 2_000, 3);
    }

    static void run() {
        finds("[]", run -> {});
        finds("[LOG]", run -> run.log.remove(1));
        finds("[LOG, LOST]", run -> run.log(run.commands.get(5), 0));
        finds("[LOST]", run -> run.fires.remove(0));
        finds("[GAP]", run -> run.fires.remove(3));
        finds("[GAP]", run -> run.fires.remove(4));
        finds("[DUPLICATE]", run -> run.fire(0, 0, DUE, 10));
        finds("[EARLY]", run -> run.change(0, 0, DUE - 1, DUE));
        finds("[EARLY]", run -> run.change(0, 0, DUE, DUE - 1));
        finds("[TOO_LATE]", run -> run.change(0, 0, DUE, DUE + LATEST + 1));
        finds("[FIRED_AFTER_CANCEL]", run -> run.fire(1, 0, DUE, 0));
        finds("[FIRED_AFTER_REPLACEMENT]", run -> run.fire(3, 0, DUE, -1));
        finds("[FIRED_OF_ABORTED]", run -> run.fire(5, 0, DUE, 0));
        finds("[UNREGISTERED]", run -> run.fire(6, 3, DUE + 3_000, 4));
        finds("[WRONG_RECORD]", run -> run.commands.get(0).payload = new byte[] {1});
        finds("[WRONG_RECORD]", run -> run.commands.get(0).targetKey = "another");
        finds("[WRONG_RECORD]", run -> run.change(0, 1, DUE, DUE));
        finds("[WRONG_RECORD]", run -> run.commands.get(0).fireAt = DUE - 1);
        finds("[ORDER]", run -> {
            run.fires.remove(4);
            run.fire(6, 2, DUE + 2_000, 0);
        });
    }

    private static void finds(String expected, Consumer<JudgeTest> change) {
        var run = new JudgeTest();
        change.accept(run);
        var found = new Judge(LATEST, PARTITIONS).judge(run.commands, run.log, run.fires).found;
        if (!found.keySet().toString().equals(expected)) {
            throw new AssertionError("the judge should find " + expected + " and finds " + found);
        }
    }

    private Command once(String id, long due) {
        var command = new Command(commands.size(), id, Command.Kind.ONCE);
        command.fireAt = due;
        return command;
    }

    private void written(Command command, long timestamp) {
        command.answer = Command.Answer.ACKNOWLEDGED;
        commands.add(command);
        log(command, timestamp);
    }

    private void log(Command command, long timestamp) {
        log.add(new Judge.Seen(0, command.number, timestamp, 0, null, null,
                List.of(Map.entry(Command.NUMBER, Integer.toString(command.number)))));
    }

    private void fire(int number, int occurrence, long due, long offset) {
        var command = commands.get(number);
        int partition = BuiltInPartitioner.partitionForKey(command.fireKey(), PARTITIONS);
        fires.add(new Judge.Seen(partition, offset, due, due, command.fireKey(), command.payload,
                List.of(Map.entry(Command.NUMBER, Integer.toString(number)),
                        Map.entry("orloj-fire-id", command.id + ":" + number + ":" + occurrence),
                        Map.entry("orloj-due", Long.toString(due)))));
    }

    /** Moves a fire by so many partitions, and to other times. */
    private void change(int index, int by, long timestamp, long receivedAt) {
        var fire = fires.get(index);
        fires.set(index, new Judge.Seen((fire.partition() + by) % PARTITIONS, fire.offset(),
                timestamp, receivedAt, fire.key(), fire.value(), fire.headers()));
    }
}
