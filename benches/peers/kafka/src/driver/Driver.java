package driver;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Measures a scheduler that lives on Kafka: {@code Driver <peer> <case> key=value... -- <command>}.
 *
 * <p>This process registers and witnesses; the scheduler is the command's own process. The last
 * line on standard output is the result, in JSON; what goes on is told on standard error.
 */
public final class Driver {
    private static final long GRACE_MS = 30_000;

    private Driver() {}

    public static void main(String[] arguments) throws IOException {
        var all = List.of(arguments);
        var end = all.indexOf("--");
        var peer = Peer.named(arguments[0]);
        var settings = new Settings(arguments[1], Arrays.copyOfRange(arguments, 2, end));
        var command = all.subList(end + 1, all.size());
        var result = new Result(peer, settings.name());
        settings.environment().forEach(result::put);
        endLongAfter(settings.deadlineMs(), new Result(peer, settings.name()));
        try (var site = new Site(peer, settings, command)) {
            new Cases(site, settings, result).measure();
        } catch (Skipped skipped) {
            result.put("skipped", skipped.getMessage());
        }
        System.out.println(result);
        System.out.flush();
        // Clients' threads may linger.
        Runtime.getRuntime().halt(0);
    }

    /** A case ends at the deadline by itself, unless a client waits for what never comes. */
    private static void endLongAfter(long deadlineMs, Result result) {
        var giveUp = deadlineMs + GRACE_MS - System.currentTimeMillis();
        CompletableFuture.delayedExecutor(giveUp, TimeUnit.MILLISECONDS)
                .execute(
                        () -> {
                            System.out.println(result.put("timed_out", true).put("received", 0));
                            System.out.flush();
                            Runtime.getRuntime().halt(0);
                        });
    }

    /** The peer cannot do the case; the message says why, in one sentence. */
    static final class Skipped extends RuntimeException {
        private static final long serialVersionUID = 1;

        Skipped(String why) {
            super(why);
        }
    }
}
