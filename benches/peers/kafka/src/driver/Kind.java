package driver;

import static java.nio.charset.StandardCharsets.US_ASCII;

/** What a registration is for, which its id's first letter says. */
enum Kind {
    /** Counts. */
    MEASURED('m'),
    /** Is only there to be pending. */
    PENDING('p'),
    /** Shows that the scheduler has taken in all before it. */
    SENTINEL('s');

    private static final Kind[] ALL = values();
    private static final int DIGITS = 8;

    private final char letter;

    Kind(char letter) {
        this.letter = letter;
    }

    byte[] id(int number) {
        var id = new byte[1 + DIGITS];
        id[0] = (byte) letter;
        for (var at = DIGITS; at > 0; at--) {
            id[at] = (byte) ('0' + number % 10);
            number /= 10;
        }
        return id;
    }

    static Kind of(byte[] id) {
        for (var kind : ALL) {
            if (kind.letter == id[0]) {
                return kind;
            }
        }
        throw new IllegalArgumentException("not an id of ours: " + new String(id, US_ASCII));
    }

    static int number(byte[] id) {
        var number = 0;
        for (var at = 1; at < id.length; at++) {
            number = 10 * number + id[at] - '0';
        }
        return number;
    }
}
