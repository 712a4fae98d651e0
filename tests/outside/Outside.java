import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.Collectors;

/**
 * Judges Orloj from outside, with Kafka's own Java client and nothing of Orloj's code: {@code
 * Outside <data> <orloj> <Kafka's jars> <logs>}. Prints a line of JSON and a summary for each case;
 * the exit code says whether there was a violation. CASES names cases by parts of their names, SEED
 * repeats a load.
 */
public final class Outside {
    private static final String TRIGGERS = "orloj.triggers";
    private static final String TARGET = "outside.target";
    /** A whole case, with the start of its brokers, in ms. */
    private static final long CASE_MS = 240_000;
    /** What a late duplicate has to show itself, in ms. */
    private static final long SETTLE_MS = 3_000;

    /** What happens while the load is written. */
    private interface Fault {
        void happen(Scene scene) throws Exception;
    }

    /** So many seconds of load; fires may be late by so many ms. */
    private record Case(String name, int seconds, long latest, Fault fault) {
        Judge judge(List<Command> commands, List<Judge.Seen> log, Reader reader) {
            return new Judge(latest, Cluster.TARGET_PARTITIONS).judge(commands, log, reader.seen());
        }
    }

    /** The processes of a case, and when its load began. */
    private record Scene(Cluster cluster, Cluster.Child first, Cluster.Child second, long from) {
        void at(int second) throws InterruptedException {
            Thread.sleep(Math.max(0, from + second * 1_000L - System.currentTimeMillis()));
        }
    }

    private static final List<Case> CASES = List.of(
            new Case("plain", 20, 5_000, scene -> {}),
            new Case("scheduler-killed", 45, 20_000, scene -> {
                scene.at(10);
                scene.first.kill();
                scene.at(12);
                scene.first.start();
                scene.at(20);
                scene.second.kill();
                // Longer than its session: the other one takes over.
                scene.at(35);
                scene.second.start();
            }),
            new Case("scheduler-stopped", 65, 20_000, scene -> {
                scene.at(10);
                scene.cluster.stopInTransaction(scene.first);
                Thread.sleep(40_000);
                scene.first.signal("CONT");
            }),
            new Case("broker-killed", 50, 30_000, scene -> {
                var broker = scene.cluster.coordinator();
                scene.at(10);
                broker.kill();
                scene.at(25);
                broker.start();
                scene.cluster.awaitBrokers();
            }),
            new Case("broker-stopped", 50, 40_000, scene -> {
                var broker = scene.cluster.coordinator();
                scene.at(10);
                broker.signal("STOP");
                scene.at(35);
                broker.signal("CONT");
                scene.cluster.awaitBrokers();
            }));

    public static void main(String[] arguments) throws Exception {
        JudgeTest.run();
        var names = System.getenv().getOrDefault("CASES", "").split(",");
        var now = Long.toString(System.currentTimeMillis());
        var seed = Long.parseLong(System.getenv().getOrDefault("SEED", now));
        var wanted = CASES.stream()
                .filter(one -> Arrays.stream(names).anyMatch(one.name::contains)).toList();
        var failed = new ArrayList<String>();
        for (var one : wanted) {
            var data = Path.of(arguments[0], one.name);
            var processes = Path.of(arguments[0], "processes");
            var places = new Cluster.Places(data, processes, arguments[1], arguments[2]);
            if (!passes(one, places, seed)) {
                failed.add(one.name);
                keepLogs(data, Path.of(arguments[3], one.name));
            }
        }
        System.out.printf("%d cases, %d failed %s%n", wanted.size(), failed.size(), failed);
        System.exit(!wanted.isEmpty() && failed.isEmpty() ? 0 : 1);
    }

    private static boolean passes(Case one, Cluster.Places places, long seed) {
        var deadline = CompletableFuture.runAsync(() -> {
            System.out.println(one.name + ": FAILED: it has not ended after " + CASE_MS + " ms");
            System.out.flush();
            // The script that started this process ends the others.
            Runtime.getRuntime().halt(1);
        }, CompletableFuture.delayedExecutor(CASE_MS, TimeUnit.MILLISECONDS));
        try (var cluster = new Cluster(places)) {
            return passes(one, cluster, seed);
        } catch (Exception error) {
            System.out.println(one.name + ": FAILED: " + error);
            error.printStackTrace();
            return false;
        } finally {
            deadline.cancel(false);
        }
    }

    private static boolean passes(Case one, Cluster cluster, long seed) throws Exception {
        cluster.createTopics(TRIGGERS, TARGET);
        var first = cluster.startScheduler("first");
        var second = cluster.startScheduler("second");
        first.awaitReady();
        second.awaitReady();
        try (var reader = new Reader(cluster.bootstrap, TARGET)) {
            var load = new Load(cluster.bootstrap, TRIGGERS, TARGET, seed);
            cluster.say("writes for " + one.seconds + " s");
            var scene = new Scene(cluster, first, second, System.currentTimeMillis());
            var fault = new FutureTask<Void>(() -> {
                one.fault.happen(scene);
                return null;
            });
            new Thread(fault, "fault").start();
            var commands = load.run(one.seconds);
            fault.get();
            var log = Reader.readAll(cluster.bootstrap, TRIGGERS);
            cluster.say("waits for the fires");
            awaitFires(one, commands, log, reader);
            first.terminate();
            second.terminate();
            // What has fired does not fire again where only the log is left.
            var third = cluster.startScheduler("empty-disk");
            third.awaitReady();
            Thread.sleep(SETTLE_MS);
            third.terminate();
            cluster.noteWhatEnded();
            var judge = one.judge(commands, log, reader);
            for (var letter : Reader.readAll(cluster.bootstrap, "orloj.dead-letters")) {
                judge.add(Judge.Violation.DEAD_LETTER, "at offset " + letter.offset());
            }
            cluster.ended.forEach(what -> judge.add(Judge.Violation.ENDED, what));
            judgeLoad(commands, judge);
            report(one, judge, commands, seed);
            return judge.found.isEmpty();
        }
    }

    /** Waits until nothing is missing, or until what is missing is too late. */
    private static void awaitFires(Case one, List<Command> commands, List<Judge.Seen> log,
            Reader reader) throws InterruptedException {
        var written = log.stream().mapToLong(Judge.Seen::timestamp).max().orElse(0);
        var due = commands.stream().flatMap(command -> command.dueTimes(written).stream())
                .mapToLong(Long::longValue).max().orElse(0);
        while (System.currentTimeMillis() < Math.max(due, written) + one.latest) {
            var found = one.judge(commands, log, reader).found.keySet();
            if (!found.contains(Judge.Violation.LOST) && !found.contains(Judge.Violation.GAP)) {
                return;
            }
            Thread.sleep(1_000);
        }
    }

    /** Each kind of record was written, in transactions and outside of them; some were aborted. */
    private static void judgeLoad(List<Command> commands, Judge judge) {
        var kinds = answered(Command.Answer.ACKNOWLEDGED, commands).stream()
                .map(command -> command.kind + (command.inTransaction ? " in a transaction" : ""))
                .collect(Collectors.toSet());
        var aborted = answered(Command.Answer.ABORTED, commands).size();
        if (kinds.size() < 2 * Command.Kind.values().length || aborted * judge.fires() == 0) {
            judge.add(Judge.Violation.LOAD, kinds + ", aborted: " + aborted);
        }
    }

    private static List<Command> answered(Command.Answer answer, List<Command> commands) {
        return commands.stream().filter(command -> command.answer == answer).toList();
    }

    private static void report(Case one, Judge judge, List<Command> commands, long seed) {
        var counts = judge.found.entrySet().stream()
                .map(entry -> "\"%s\": %d".formatted(name(entry.getKey()), entry.getValue().size()))
                .collect(Collectors.joining(", "));
        System.out.printf("{\"case\": \"%s\", \"seed\": %d, \"records\": %d, \"aborted\": %d, "
                + "\"expected\": %d, \"undecided\": %d, \"fires\": %d, "
                + "\"late_ms\": {\"p50\": %d, \"p99\": %d, \"max\": %d}, \"violations\": {%s}}%n",
                one.name, seed, commands.size(), answered(Command.Answer.ABORTED, commands).size(),
                judge.expected, judge.undecided, judge.fires(),
                judge.lateness(0.5), judge.lateness(0.99), judge.lateness(1), counts);
        System.out.printf("%s: %s%n", one.name, judge.found.isEmpty() ? "passed" : "FAILED");
        judge.found.forEach((violation, all) -> {
            System.out.printf("  %s: %d%n", name(violation), all.size());
            all.stream().limit(5).forEach(what -> System.out.println("    " + what));
        });
        System.out.flush();
    }

    private static String name(Judge.Violation violation) {
        return violation.name().toLowerCase(Locale.ROOT);
    }

    private static void keepLogs(Path data, Path kept) throws Exception {
        Files.createDirectories(kept);
        try (var files = Files.newDirectoryStream(data, "*.log")) {
            for (var file : files) {
                var copy = kept.resolve(file.getFileName());
                Files.copy(file, copy, StandardCopyOption.REPLACE_EXISTING);
            }
        }
        System.out.println("  logs: " + kept);
    }
}
