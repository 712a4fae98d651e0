#!/bin/sh
# Compiles the driver and the Kafka Streams scheduler and prints their class path.
#
# Law: the jars are fetched once; the classes are compiled again when a source has changed.
set -eu

peers=$(cd "$(dirname "$0")/.." && pwd)
scratch=$peers/../../target/peers/kafka
mkdir -p "$scratch"
scratch=$(cd "$scratch" && pwd)
sources=$(find "$peers/kafka/src" "$peers/kafka-streams/src" -name '*.java' | sort)

if ! cmp -s "$peers/kafka/pom.xml" "$scratch/pom.xml"; then
    echo "fetching Kafka Streams and what it needs into $scratch/libs" >&2
    rm -rf "$scratch/libs"
    mvn --batch-mode --quiet -Dstyle.color=never --file "$peers/kafka/pom.xml" \
        dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$scratch/libs" </dev/null >&2
    rm -f "$scratch/compiled"
    cp "$peers/kafka/pom.xml" "$scratch/pom.xml"
fi

# shellcheck disable=SC2086 # several files
sum=$(cat $sources | cksum)
if [ "$sum" != "$(cat "$scratch/compiled" 2>/dev/null || true)" ]; then
    echo "compiling the driver and the Kafka Streams scheduler" >&2
    rm -rf "$scratch/classes"
    # shellcheck disable=SC2086
    javac -Xlint:all,-classfile -Werror --release 17 -cp "$scratch/libs/*" \
        -d "$scratch/classes" $sources >&2
    echo "$sum" >"$scratch/compiled"
fi

echo "$scratch/classes:$scratch/libs/*"
