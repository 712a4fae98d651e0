import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes triggers at a steady rate, and what cancels and replaces them; a quarter in transactions,
 * of which every third is aborted. What is written follows from the seed.
 */
final class Load {
    private static final int TRIGGERS_PER_SECOND = 300;
    private static final int RECURRING = 20;
    /** Of all triggers, in percent. */
    private static final int CANCELLED = 20;
    private static final int REPLACED = 20;
    /** Of all records, in percent. */
    private static final int IN_TRANSACTION = 25;
    /** Between two transactions, in ms. */
    private static final int TRANSACTION_PAUSE = 100;

    private record Later(long at, Command command) {}

    private final String triggers;
    private final String target;
    private final Random random;
    private final KafkaProducer<String, byte[]> plain;
    private final KafkaProducer<String, byte[]> transactional;
    private final List<Command> commands = new ArrayList<>();
    private final PriorityQueue<Later> later =
            new PriorityQueue<>(Comparator.comparingLong(Later::at));
    private final LinkedBlockingQueue<Command> forTransactions = new LinkedBlockingQueue<>();
    private volatile boolean ended;
    private volatile Exception failure;

    Load(String bootstrap, String triggers, String target, long seed) {
        this.triggers = triggers;
        this.target = target;
        random = new Random(seed);
        plain = producer(bootstrap, Map.of());
        transactional = producer(bootstrap, Map.of("transactional.id", "outside-load"));
        transactional.initTransactions();
    }

    /** A broker that hangs is given up soon, and everything is tried until it is written. */
    private static KafkaProducer<String, byte[]> producer(String bootstrap, Map<String, ?> more) {
        var settings = new HashMap<String, Object>(more);
        settings.putAll(Map.of("bootstrap.servers", bootstrap, "acks", "all",
                "request.timeout.ms", 5_000, "delivery.timeout.ms", 100_000,
                "max.block.ms", 100_000));
        return new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer());
    }

    /** Writes for so long; returns when the broker has answered everything. */
    List<Command> run(int seconds) throws Exception {
        var transactions = new Thread(this::writeTransactions, "transactions");
        transactions.start();
        var from = System.currentTimeMillis();
        var until = from + seconds * 1_000L;
        for (int i = 0; i < RECURRING; i++) {
            recurring(i, from, until);
        }
        long made = 0;
        for (var now = from; now < until || !later.isEmpty(); now = System.currentTimeMillis()) {
            for (; now < until && made < (now - from) * TRIGGERS_PER_SECOND / 1_000; made++) {
                once("once-" + made, now);
            }
            while (!later.isEmpty() && later.peek().at <= now) {
                send(later.poll().command);
            }
            Thread.sleep(5);
        }
        plain.close();
        ended = true;
        transactions.join();
        transactional.close();
        if (failure != null) {
            throw failure;
        }
        return commands;
    }

    private void recurring(int index, long from, long until) {
        var command = registration("every-" + index, Command.Kind.RECURRING);
        command.every = 1_000 * (1 + index % 2);
        command.start = from + 7_000 + random.nextInt(1_000);
        command.end = until + random.nextInt(5_000);
        // The first of these is in the first transaction, which is committed.
        command.inTransaction = index % 5 == 0;
        later.add(new Later(from + index * 200L, command));
        if (index % 4 == 0) {
            int half = (int) (until - from) / 2;
            later.add(new Later(from + half + random.nextInt(half),
                    command(command.id, Command.Kind.CANCEL)));
        }
    }

    private void once(String id, long now) {
        int kind = random.nextInt(100);
        boolean isChanged = kind < CANCELLED + REPLACED;
        // What is cancelled or replaced has several seconds until it is due.
        int earliest = isChanged ? 6_000 : 2_000;
        send(once(id, now, earliest + random.nextInt(20_000 - earliest)));
        if (isChanged) {
            var at = now + 1_000 + random.nextInt(3_000);
            boolean isCancel = kind < CANCELLED;
            later.add(new Later(at, isCancel ? command(id, Command.Kind.CANCEL)
                    : once(id, at, 2_000 + random.nextInt(12_000))));
        }
    }

    private Command once(String id, long now, int ahead) {
        var command = registration(id, Command.Kind.ONCE);
        boolean isDelay = random.nextBoolean();
        command.fireAt = isDelay ? 0 : now + ahead;
        command.delay = isDelay ? ahead : 0;
        return command;
    }

    private Command registration(String id, Command.Kind kind) {
        var command = command(id, kind);
        command.isJson = random.nextBoolean();
        command.targetKey = random.nextInt(4) == 0 ? "key-" + random.nextInt(50) : null;
        command.payload = new byte[1 + random.nextInt(200)];
        random.nextBytes(command.payload);
        return command;
    }

    private Command command(String id, Command.Kind kind) {
        var command = new Command(commands.size(), id, kind);
        command.inTransaction = random.nextInt(100) < IN_TRANSACTION;
        commands.add(command);
        return command;
    }

    private void send(Command command) {
        if (command.inTransaction) {
            forTransactions.add(command);
            return;
        }
        plain.send(command.toRecord(triggers, target), (written, error) -> command.answer =
                error == null ? Command.Answer.ACKNOWLEDGED : Command.Answer.UNKNOWN);
    }

    private void writeTransactions() {
        try {
            for (int written = 0; !ended || !forTransactions.isEmpty();) {
                Thread.sleep(TRANSACTION_PAUSE);
                var records = new ArrayList<Command>();
                forTransactions.drainTo(records);
                if (!records.isEmpty()) {
                    writeTransaction(records, written++ % 3 != 2);
                }
            }
        } catch (Exception error) {
            failure = error;
        }
    }

    /** The client itself tries again for longer than any fault lasts. */
    private void writeTransaction(List<Command> records, boolean commit) {
        transactional.beginTransaction();
        records.forEach(command -> transactional.send(command.toRecord(triggers, target)));
        // What is aborted is in the log before: only there can it do harm.
        transactional.flush();
        if (commit) {
            transactional.commitTransaction();
        } else {
            transactional.abortTransaction();
        }
        for (var command : records) {
            command.committedAt = System.currentTimeMillis();
            command.answer = commit ? Command.Answer.ACKNOWLEDGED : Command.Answer.ABORTED;
        }
    }
}
