import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Base64;
import java.util.*;
import java.util.stream.LongStream;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A record of the triggers topic: what it asks for, how it is written, what was answered. */
final class Command {
    enum Kind { ONCE, RECURRING, CANCEL }

    /** UNKNOWN until the broker has answered. */
    enum Answer { UNKNOWN, ACKNOWLEDGED, ABORTED }

    /** A header of our own, which the fires carry too. */
    static final String NUMBER = "outside-number";

    final int number;
    final String id;
    final Kind kind;
    boolean inTransaction;
    boolean isJson;
    /** When: at a time, or so long after the broker's timestamp, or from start until end. */
    long fireAt;
    long delay;
    long every;
    long start;
    long end;
    /** Null: the key of a fire is the trigger's id. */
    String targetKey;
    byte[] payload = {};
    volatile Answer answer = Answer.UNKNOWN;
    /** When commitTransaction returned; 0 for a record outside of a transaction. */
    volatile long committedAt;

    Command(int number, String id, Kind kind) {
        this.number = number;
        this.id = id;
        this.kind = kind;
    }

    byte[] fireKey() {
        return (targetKey == null ? id : targetKey).getBytes(UTF_8);
    }

    /** The due times that follow from the broker's timestamp of the record. */
    List<Long> dueTimes(long timestamp) {
        return switch (kind) {
            case CANCEL -> List.of();
            case ONCE -> List.of(fireAt > 0 ? fireAt : timestamp + delay);
            case RECURRING -> LongStream.iterate(start, at -> at < end, at -> at + every).boxed()
                    .toList();
        };
    }

    /** In the forms of docs/reference/formats.md. */
    ProducerRecord<String, byte[]> toRecord(String triggers, String target) {
        var value = kind == Kind.CANCEL ? null : isJson ? json(target) : payload;
        var record = new ProducerRecord<>(triggers, id, value);
        header(record, NUMBER, Integer.toString(number));
        if (kind != Kind.CANCEL && !isJson) {
            header(record, "orloj-target-topic", target);
            if (targetKey != null) {
                header(record, "orloj-target-key", targetKey);
            }
            switch (kind) {
                case RECURRING -> header(record, "orloj-schedule", schedule());
                default -> header(record, fireAt > 0 ? "orloj-fire-at" : "orloj-delay",
                        Long.toString(fireAt > 0 ? fireAt : delay));
            }
        }
        return record;
    }

    private static void header(ProducerRecord<?, ?> record, String name, String value) {
        record.headers().add(name, value.getBytes(UTF_8));
    }

    private byte[] json(String target) {
        var when = kind == Kind.RECURRING ? "\"schedule\": " + schedule()
                : fireAt > 0 ? "\"fireAt\": " + fireAt : "\"delay\": " + delay;
        var key = targetKey == null ? "" : ", \"key\": \"" + targetKey + "\"";
        return "{%s, \"target\": {\"topic\": \"%s\"%s}, \"payloadBase64\": \"%s\"}".formatted(when,
                target, key, Base64.getEncoder().encodeToString(payload)).getBytes(UTF_8);
    }

    /** However late an occurrence is, it fires: none may be left out. */
    private String schedule() {
        return "{\"every\": %d, \"start\": %d, \"end\": %d, \"misfire\": {\"all\": 1000}}"
                .formatted(every, start, end);
    }
}
