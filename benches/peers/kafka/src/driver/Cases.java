package driver;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;

/** What is measured. */
final class Cases {
    private static final long DAY_MS = 86_400_000;

    /** From a live registration to its time. */
    private static final long DELAY_MS = 3_000;

    /** Live registrations' first fires, which do not count. */
    private static final int WARM_UP_S = 2;

    private final Site site;
    private final Settings settings;
    private final Result result;

    Cases(Site site, Settings settings, Result result) {
        this.site = site;
        this.settings = settings;
        this.result = result;
    }

    void measure() throws IOException {
        switch (settings.name()) {
            case "burst" -> burst();
            case "lateness" -> lateness();
            case "sustained" -> sustained();
            case "plain" -> plain();
            default -> throw new Driver.Skipped("The driver knows no such case.");
        }
    }

    /** All are due in the same grain of time; they were taken in before. */
    private void burst() throws IOException {
        var count = settings.count();
        try (var registrar = site.registrar();
                var witness = site.witness()) {
            var scheduler = site.startScheduler();
            var begunMs = System.currentTimeMillis();
            var intakeMs = 1_000L * count / settings.intake(site.peer().intake());
            var dueMs = site.peer().roundUp(begunMs + 10_000 + intakeMs);
            registrar.fill(Kind.MEASURED, count, number -> dueMs);
            registrar.sentinels(settings.partitions(), soon());
            say("registered; all due in %d ms", dueMs - System.currentTimeMillis());
            var takenIn = witness.awaitSentinels(settings.partitions(), dueMs - 500);
            var tookMs = System.currentTimeMillis() - begunMs;
            say("taken in %d ms after the first registration", tookMs);
            if (!takenIn) {
                result.note("It was still taking registrations in when they became due.");
            }
            var complete = witness.awaitMeasured(count, settings.deadlineMs());
            finish(witness, scheduler, complete, count);
            result.put("seconds", (witness.lastMs() - dueMs) / 1e3);
        }
    }

    /** A steady rate, with others pending for later. */
    private void lateness() throws IOException {
        result.put("rate", settings.rate()).put("pending", settings.pending());
        refuseWhatFillsMemory();
        try (var registrar = site.registrar();
                var witness = site.witness()) {
            var scheduler = site.startScheduler();
            var begunMs = System.currentTimeMillis();
            var random = ThreadLocalRandom.current();
            registrar.fill(
                    Kind.PENDING,
                    settings.pending(),
                    number -> site.peer().roundUp(begunMs + random.nextLong(DAY_MS)));
            registrar.sentinels(settings.partitions(), soon());
            var takenIn = witness.awaitSentinels(settings.partitions(), settings.deadlineMs());
            var fillS = (System.currentTimeMillis() - begunMs) / 1e3;
            say("%d pending taken in after %.1f s", settings.pending(), fillS);
            result.put("pending_fill_s", fillS);
            if (!takenIn) {
                result.note("It did not take in what was to be pending.");
                finish(witness, scheduler, false, 0);
                return;
            }
            var count = settings.rate() * (WARM_UP_S + settings.seconds());
            var liveMs = System.currentTimeMillis() + 500;
            witness.measureFrom(liveMs + DELAY_MS + 1_000 * WARM_UP_S);
            var live =
                    CompletableFuture.runAsync(
                            () -> registrar.live(count, settings.rate(), liveMs, DELAY_MS));
            var complete = witness.awaitMeasured(count, settings.deadlineMs());
            if (complete) {
                live.join();
            }
            finish(witness, scheduler, complete, count);
            result.put("seconds", settings.seconds());
            result.put("achieved_per_s", perSecond(count, witness.lastMs() - liveMs - DELAY_MS));
        }
    }

    private void refuseWhatFillsMemory() throws IOException {
        var needed = site.peer().pendingBytes(settings.pending());
        try (var lines = Files.lines(Path.of("/proc/meminfo"))) {
            var free = lines.filter(line -> line.startsWith("MemAvailable:")).findFirst();
            var freeBytes = Long.parseLong(free.orElseThrow().replaceAll("\\D", "")) << 10;
            if (needed > freeBytes / 2) {
                throw new Driver.Skipped(
                        "It keeps what is pending in memory: about %d MiB, of %d MiB free."
                                .formatted(needed >> 20, freeBytes >> 20));
            }
        }
    }

    /** A backlog, all of it due when the scheduler begins to read. */
    private void sustained() throws IOException {
        var count = settings.count();
        try (var registrar = site.registrar();
                var witness = site.witness()) {
            var begunMs = System.currentTimeMillis();
            var lastDueMs = site.peer().roundUp(begunMs + 1_000);
            registrar.fill(Kind.MEASURED, count, number -> lastDueMs);
            say("%d registered in %d ms", count, System.currentTimeMillis() - begunMs);
            while (System.currentTimeMillis() <= lastDueMs) {
                Thread.onSpinWait();
            }
            var scheduler = site.startScheduler();
            var readyMs = System.currentTimeMillis();
            say("ready");
            var complete = witness.awaitMeasured(count, settings.deadlineMs());
            finish(witness, scheduler, complete, count);
            result.put("seconds", (witness.lastMs() - readyMs) / 1e3);
            result.put("per_s", perSecond(witness.measured(), witness.lastMs() - readyMs));
        }
    }

    /** No scheduler: what the driver and the broker can do, to know that they do not limit. */
    private void plain() {
        var half = settings.count() / 2;
        try (var registrar = site.shortCircuit();
                var witness = site.witness()) {
            // The first half compiles the classes.
            registrar.fires(0, half);
            var begunMs = System.currentTimeMillis();
            registrar.fires(half, half);
            result.put("produced_per_s", perSecond(half, System.currentTimeMillis() - begunMs));
            witness.awaitMeasured(half, settings.deadlineMs());
            begunMs = System.currentTimeMillis();
            witness.awaitMeasured(2 * half, settings.deadlineMs());
            result.put("consumed_per_s", perSecond(half, System.currentTimeMillis() - begunMs));
        }
    }

    private void finish(Witness witness, SchedulerProcess scheduler, boolean complete, int count) {
        result.put("count", count);
        var lateness = witness.lateness();
        if (lateness.total() > 0) {
            result.put("p50_ms", lateness.allBut(500));
            result.put("p99_ms", lateness.allBut(10));
            result.put("p999_ms", lateness.allBut(1));
        }
        if (lateness.early() > 0) {
            result.put("early", lateness.early());
        }
        if (witness.duplicates() > 0) {
            result.put("duplicates", witness.duplicates());
        }
        if (!complete) {
            result.put("timed_out", true).put("received", witness.measured());
        }
        if (scheduler.isAlive()) {
            result.put("rss_mb", scheduler.peakRssMb());
        } else {
            result.note("It ended by itself.");
        }
    }

    private long soon() {
        return site.peer().roundUp(System.currentTimeMillis() + 2_000);
    }

    private static long perSecond(int count, long ms) {
        return 1_000L * count / Math.max(1, ms);
    }

    private static void say(String format, Object... arguments) {
        System.err.printf("driver: " + format + "%n", arguments);
    }
}
