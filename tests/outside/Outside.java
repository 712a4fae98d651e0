import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * Judges Orloj from outside, with Kafka's own Java client and nothing of Orloj's code: {@code Outside
 * <folder> <orloj> <Kafka's jars> <logs>}. Prints a line of JSON and a summary for each case; the exit
 * code says whether there was a violation. CASES names cases by a part of their names, SEED repeats
 * a load.
 */
public final class Outside {
    private static final String TRIGGERS = "orloj.triggers";
    private static final String TARGET = "outside.target";
    /** From the beginning of a case, with its brokers, to its end. */
    private static final long CASE_MS = 200_000;
    /** So long a late duplicate may take to show itself. */
    private static final long SETTLE_MS = 3_000;

    /** What happens while the load is written. */
    private interface Fault {
        void happen(Scene scene) throws Exception;
    }

    /** So many seconds of load; fires may be late by so many ms. */
    private record Case(String name, int seconds, long latest, Fault fault) {}

    private static final List<Case> CASES = List.of(
            new Case("plain", 30, 5_000, scene -> {}),
            new Case("scheduler-killed", 45, 20_000, scene -> {
                scene.at(10);
                scene.first.kill();
                scene.at(12);
                scene.first.start();
                // Longer than its session: the other one takes over.
                scene.at(20);
                scene.second.kill();
                scene.at(35);
                scene.second.start();
            }),
            new Case("scheduler-stopped", 60, 20_000, scene -> {
                scene.at(10);
                scene.first.signal("STOP");
                scene.at(50);
                scene.first.signal("CONT");
            }),
            new Case("broker-killed", 50, 30_000, scene -> {
                scene.at(10);
                var broker = scene.cluster.coordinator();
                broker.kill();
                scene.at(25);
                broker.start();
            }),
            new Case("broker-stopped", 50, 40_000, scene -> {
                scene.at(10);
                var broker = scene.cluster.coordinator();
                broker.signal("STOP");
                scene.at(35);
                broker.signal("CONT");
            }));

    /** The processes of a case, and when its load began. */
    private record Scene(Cluster cluster, Cluster.Child first, Cluster.Child second, long from) {
        void at(int second) throws InterruptedException {
            Thread.sleep(Math.max(0, from + second * 1_000L - System.currentTimeMillis()));
        }
    }

    public static void main(String[] arguments) throws Exception {
        JudgeTest.run();
        var wanted = System.getenv().getOrDefault("CASES", "").split(",");
        var given = System.getenv().getOrDefault("SEED", "");
        var seed = given.isEmpty() ? System.currentTimeMillis() : Long.parseLong(given);
        int ran = 0;
        var failed = new ArrayList<String>();
        for (var one : CASES) {
            if (!List.of(wanted).stream().anyMatch(one.name::contains)) {
                continue;
            }
            ran++;
            if (!run(one, Path.of(arguments[0], one.name), arguments, seed)) {
                failed.add(one.name);
                keepLogs(Path.of(arguments[0], one.name), Path.of(arguments[3], one.name));
            }
        }
        System.out.printf("%d cases, %d failed %s%n", ran, failed.size(), failed);
        System.exit(ran > 0 && failed.isEmpty() ? 0 : 1);
    }

    private static boolean run(Case one, Path folder, String[] arguments, long seed) {
        var began = System.currentTimeMillis();
        var deadline = CompletableFuture.runAsync(() -> {
            System.out.println(one.name + ": FAILED: it has not ended after " + CASE_MS + " ms");
            System.out.flush();
            // The script that started this process ends the others.
            Runtime.getRuntime().halt(1);
        }, CompletableFuture.delayedExecutor(CASE_MS, TimeUnit.MILLISECONDS));
        try (var cluster = new Cluster(folder, Path.of(arguments[0], "pids"), arguments[1],
                arguments[2])) {
            return run(one, cluster, seed, began);
        } catch (Exception error) {
            System.out.println(one.name + ": FAILED: " + error);
            error.printStackTrace(System.out);
            return false;
        } finally {
            deadline.cancel(false);
        }
    }

    private static boolean run(Case one, Cluster cluster, long seed, long began) throws Exception {
        cluster.createTopics(TARGET);
        var first = cluster.startScheduler("first");
        var second = cluster.startScheduler("second");
        first.awaitReady();
        second.awaitReady();
        var load = new Load(cluster.bootstrap, TRIGGERS, TARGET, seed);
        try (var reader = new Reader(cluster.bootstrap, TARGET)) {
            var scene = new Scene(cluster, first, second, System.currentTimeMillis());
            var fault = CompletableFuture.runAsync(() -> {
                try {
                    one.fault.happen(scene);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            cluster.say("writes for " + one.seconds + " s");
            var commands = load.run(one.seconds);
            fault.get();
            var log = Reader.readAll(cluster.bootstrap, TRIGGERS);
            cluster.say("waits for the fires");
            awaitFires(one, commands, log, reader);
            first.terminate();
            second.terminate();
            // What has fired must not fire again where only the log is left.
            var third = cluster.startScheduler("empty-disk");
            third.awaitReady();
            Thread.sleep(SETTLE_MS);
            third.terminate();
            Thread.sleep(500);
            var judge = new Judge(one.latest, Cluster.TARGET_PARTITIONS)
                    .judge(commands, log, reader.seen());
            for (var letter : Reader.readAll(cluster.bootstrap, "orloj.dead-letters")) {
                judge.add(Judge.Violation.DEAD_LETTER, new String(letter.key()));
            }
            cluster.noteWhatEnded();
            cluster.ended.forEach(what -> judge.add(Judge.Violation.ENDED, what));
            judgeLoad(commands, judge);
            report(one, judge, commands, seed, System.currentTimeMillis() - began);
            return judge.counts().isEmpty();
        }
    }

    /** Waits until nothing is missing, or until what is missing is too late. */
    private static void awaitFires(Case one, List<Command> commands, List<Judge.Seen> log,
            Reader reader) throws InterruptedException {
        var last = log.stream().mapToLong(Judge.Seen::timestamp).max().orElse(0);
        for (var command : commands) {
            last = Math.max(last, command.dueTimes(last).stream().mapToLong(x -> x).max().orElse(0));
        }
        while (System.currentTimeMillis() < last + one.latest) {
            var judge = new Judge(one.latest, Cluster.TARGET_PARTITIONS)
                    .judge(commands, log, reader.seen());
            if (judge.count(Judge.Violation.LOST) + judge.count(Judge.Violation.GAP) == 0) {
                return;
            }
            Thread.sleep(1_000);
        }
    }

    /** Each kind of trigger and of end must have happened. */
    private static void judgeLoad(List<Command> commands, Judge judge) {
        for (var kind : Command.Kind.values()) {
            for (var inTransaction : List.of(true, false)) {
                var some = commands.stream()
                        .filter(c -> c.kind == kind && c.inTransaction == inTransaction).toList();
                var answers = some.stream().map(c -> c.answer).collect(Collectors.toSet());
                if (!answers.contains(Command.Answer.ACKNOWLEDGED)) {
                    judge.add(Judge.Violation.LOAD, "no " + kind + ", transaction " + inTransaction);
                }
            }
        }
        if (aborted(commands) == 0 || judge.fires() == 0) {
            judge.add(Judge.Violation.LOAD, "nothing was aborted, or nothing fired");
        }
    }

    private static long aborted(List<Command> commands) {
        return commands.stream().filter(c -> c.answer == Command.Answer.ABORTED).count();
    }

    private static void report(Case one, Judge judge, List<Command> commands, long seed, long took) {
        var counts = judge.counts().entrySet().stream()
                .map(e -> "\"" + e.getKey().name().toLowerCase() + "\": " + e.getValue())
                .collect(Collectors.joining(", "));
        var unanswered = commands.stream().filter(c -> c.answer == Command.Answer.UNKNOWN).count();
        System.out.printf("{\"case\": \"%s\", \"seed\": %d, \"seconds\": %d, \"records\": %d, "
                + "\"aborted\": %d, \"unanswered\": %d, \"expected\": %d, \"undecided\": %d, "
                + "\"fires\": %d, \"late_ms\": {\"p50\": %d, \"p99\": %d, \"max\": %d}, "
                + "\"violations\": {%s}}%n", one.name, seed, took / 1_000, commands.size(),
                aborted(commands), unanswered, judge.expected, judge.undecided, judge.fires(),
                judge.lateness(0.5), judge.lateness(0.99), judge.lateness(1), counts);
        System.out.printf("%s: %s%n", one.name, judge.counts().isEmpty() ? "passed" : "FAILED");
        judge.counts().forEach((violation, count) -> {
            System.out.printf("  %s: %d%n", violation.name().toLowerCase().replace('_', ' '), count);
            judge.examples().get(violation).forEach(what -> System.out.println("    " + what));
        });
        System.out.flush();
    }

    private static void keepLogs(Path folder, Path kept) throws Exception {
        Files.createDirectories(kept);
        try (var files = Files.list(folder)) {
            for (var file : files.filter(f -> f.toString().endsWith(".log")).toList()) {
                Files.copy(file, kept.resolve(file.getFileName()),
                        java.nio.file.StandardCopyOption.REPLACE_EXISTING);
            }
        }
        System.out.println("  logs: " + kept);
    }
}
