#!/bin/sh
# Compiles the harness of this folder and runs it on the scheduler of $ORLOJ, or of the last `cargo build`.
# Whatever it started is ended by process id when it ends, and its data are removed, also when it is
# interrupted.
set -eu
cd "$(dirname "$0")/../.."

built=${CARGO_TARGET_DIR:-$HOME/.cache/orloj/target}
orloj=${ORLOJ:-$built/debug/orloj}
jars=$(scripts/kafka.sh)
data=$(mktemp -d "${TMPDIR:-/tmp}/orloj-outside.XXXXXX")
java=

clean() {
    trap - EXIT INT TERM
    [ -z "$java" ] || kill -9 "$java" 2>/dev/null || true
    for pid in $(cat "$data/processes" 2>/dev/null); do
        # The number may belong to another process by now.
        if grep -qaF "$data" "/proc/$pid/cmdline" 2>/dev/null; then
            kill -9 "$pid" 2>/dev/null || true
        fi
    done
    rm -rf "$data"
}
trap clean EXIT
trap 'clean; exit 130' INT TERM

javac -Xlint:all -Werror -d "$data/classes" -cp "$jars/*" tests/outside/*.java
java -Xmx1g -XX:+UseSerialGC -Dorg.apache.logging.log4j.level=ERROR -cp "$data/classes:$jars/*" \
    Outside "$data" "$orloj" "$jars" "$built/outside" &
java=$!
wait "$java"
