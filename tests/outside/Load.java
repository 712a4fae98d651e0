import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Random;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes triggers at a steady rate, and what cancels and replaces them; a quarter in transactions, of
 * which every third is aborted. What is written follows from the seed.
 */
final class Load {
    private static final int TRIGGERS_PER_SECOND = 300;
    private static final int RECURRING = 20;
    /** A quarter of the records are written in transactions, in percent. */
    private static final int IN_TRANSACTION = 25;
    private static final int CANCELLED = 20;
    private static final int REPLACED = 20;
    /** The transactions begin so long after each other, in ms. */
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
        plain = producer(Map.of("bootstrap.servers", bootstrap));
        transactional = producer(
                Map.of("bootstrap.servers", bootstrap, "transactional.id", "outside-load"));
        transactional.initTransactions();
    }

    private static KafkaProducer<String, byte[]> producer(Map<String, Object> settings) {
        var all = new java.util.HashMap<>(settings);
        all.put("acks", "all");
        all.put("linger.ms", 5);
        // A broker that hangs is given up soon, and everything is tried until it is written.
        all.put("request.timeout.ms", 5_000);
        all.put("delivery.timeout.ms", 100_000);
        all.put("max.block.ms", 100_000);
        return new KafkaProducer<>(all, new StringSerializer(), new ByteArraySerializer());
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
                trigger(now, "once-" + made);
            }
            while (!later.isEmpty() && later.peek().at <= now) {
                send(later.poll().command);
            }
            Thread.sleep(5);
        }
        ended = true;
        plain.close();
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
        command.inTransaction = index % 5 == 0;
        // The first is in the first transaction, which is committed.
        send(from + index * 200L, command);
        if (index % 4 == 0) {
            var length = until - from;
            send(from + length / 2 + random.nextInt((int) length / 2), cancel(command.id));
        }
    }

    private void trigger(long now, String id) {
        var then = random.nextInt(100);
        boolean cancelled = then < CANCELLED;
        boolean replaced = !cancelled && then < CANCELLED + REPLACED;
        // What is cancelled or replaced has several seconds until it is due.
        int earliest = cancelled || replaced ? 6_000 : 2_000;
        send(once(id, now, earliest + random.nextInt(20_000 - earliest)));
        var at = now + 1_000 + random.nextInt(3_000);
        if (cancelled) {
            send(at, cancel(id));
        } else if (replaced) {
            send(at, once(id, at, 2_000 + random.nextInt(12_000)));
        }
    }

    private Command once(String id, long now, int ahead) {
        var command = registration(id, Command.Kind.ONCE);
        if (random.nextBoolean()) {
            command.fireAt = now + ahead;
        } else {
            command.delay = ahead;
        }
        return command;
    }

    private Command registration(String id, Command.Kind kind) {
        var command = command(id, kind);
        command.form = random.nextBoolean() ? Command.Form.JSON : Command.Form.HEADERS;
        if (random.nextInt(4) == 0) {
            command.targetKey = "key-" + random.nextInt(50);
        }
        command.payload = new byte[1 + random.nextInt(200)];
        random.nextBytes(command.payload);
        return command;
    }

    private Command cancel(String id) {
        return command(id, Command.Kind.CANCEL);
    }

    private Command command(String id, Command.Kind kind) {
        var command = new Command(commands.size(), id, kind);
        command.inTransaction = random.nextInt(100) < IN_TRANSACTION;
        commands.add(command);
        return command;
    }

    private void send(long at, Command command) {
        later.add(new Later(at, command));
    }

    private void send(Command command) {
        if (command.inTransaction) {
            forTransactions.add(command);
            return;
        }
        plain.send(command.toRecord(triggers, target), (written, error) -> {
            if (error == null) {
                command.answer = Command.Answer.ACKNOWLEDGED;
            }
        });
    }

    private void writeTransactions() {
        try {
            for (int written = 0; !ended || !forTransactions.isEmpty();) {
                var records = new ArrayList<Command>();
                TimeUnit.MILLISECONDS.sleep(TRANSACTION_PAUSE);
                forTransactions.drainTo(records);
                if (!records.isEmpty()) {
                    writeTransaction(records, written++ % 3 != 2);
                }
            }
        } catch (Exception error) {
            failure = error;
        }
    }

    private void writeTransaction(List<Command> records, boolean commit) {
        transactional.beginTransaction();
        for (var command : records) {
            transactional.send(command.toRecord(triggers, target));
        }
        // What is aborted shall be in the log: only there can it do harm.
        transactional.flush();
        if (commit) {
            try {
                tryUntilAnswered(transactional::commitTransaction);
            } catch (KafkaException refused) {
                tryUntilAnswered(transactional::abortTransaction);
                commit = false;
            }
        } else {
            tryUntilAnswered(transactional::abortTransaction);
        }
        var now = System.currentTimeMillis();
        for (var command : records) {
            command.committedAt = now;
            command.answer = commit ? Command.Answer.ACKNOWLEDGED : Command.Answer.ABORTED;
        }
    }

    /** Kafka's client allows the same call again after a timeout, and no other. */
    private static void tryUntilAnswered(Runnable call) {
        for (int tries = 1;; tries++) {
            try {
                call.run();
                return;
            } catch (TimeoutException error) {
                if (tries == 3) {
                    throw error;
                }
            }
        }
    }
}
