#!/bin/sh
# Builds the program for the demonstration, says on stderr how far it is, and prints the program's path.
#
# RocksDB and librdkafka are taken from packages that carry them compiled: the same versions as the
# crates would compile, reached through their C interfaces only, and without the corrections of
# vendor/rdkafka-sys: the demonstration has no broker that restarts. Where that is not possible, or with
# DEMO_BUILD=source, they are compiled, as for every other purpose: tests, benches, releases.
set -eu
cd "$(dirname "$0")/.."

cache=${ORLOJ_CACHE:-$HOME/.cache/orloj}
rocksdb=11.8.1
rocksdb_jar=628ed387887f4a431df480857954df2a28b4389bfe24858ccdec611cabf65dbf
librdkafka=2.12.1
soname=librdkafka-f7dd8076.so.1
librdkafka_wheel=5958feea006c92ac4d5f37cc9b730eb1824a68d7536be7ec274d6841ce0412af
# bindgen reads RocksDB's header with it; nothing of it is linked.
libclang=18.1.1
libclang_wheel=c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b
natives=$cache/natives-$rocksdb-$librdkafka-$libclang
work=$(mktemp -d)
reporter=

finish() {
    [ -z "$reporter" ] || kill "$reporter" 2>/dev/null || true
    rm -rf "$work" ${staging:+"$staging"}
}
trap finish EXIT
trap 'exit 130' INT TERM

say() {
    printf '%s\n' "$*" >&2
}

# The last thing a command wrote; of cargo's progress bar, only the numbers and the names.
latest() {
    tail -c 2000 "$work/log" | tr '\r' '\n' | sed -n \
        -e 's/^ *Building \[.*\] \([0-9]*\)\/\([0-9]*\): *\(.*\)/\1 of \2 steps done, now \3/' \
        -e 's/ *$//' -e '/./p' | tail -n 1 | cut -c -100
}

# Says every few seconds how a command is doing, until it is killed.
report() {
    passed=0
    while sleep 5 && kill -0 $$ 2>/dev/null; do
        passed=$((passed + 5))
        say "  $passed s: $(latest)"
    done
}

# follow COMMAND...: runs it with its output in a file, and reports while it runs.
follow() {
    : >"$work/log"
    # Its pauses outlive it; they must not keep the caller waiting for the end of our output.
    report >/dev/null &
    reporter=$!
    status=0
    "$@" >"$work/log" 2>&1 </dev/null || status=$?
    kill "$reporter"
    wait "$reporter" 2>/dev/null || true
    reporter=
    return "$status"
}

# locked CRATE: the version of the native library that the locked crate brings.
locked() {
    sed -n "/^name = \"$1\"\$/{n;s/.*+\\([0-9.]*\\)\"\$/\\1/p}" Cargo.lock
}

# unpack ARCHIVE MEMBER FILE
unpack() {
    python3 -c 'import sys, zipfile
archive, member, file = sys.argv[1:]
with open(file, "wb") as copy: copy.write(zipfile.ZipFile(archive).read(member))' "$@"
}

# Both libraries can be loaded here: the processor, the C library and libstdc++ are what they need.
loads() {
    python3 -c 'import ctypes, sys
rocksdb, librdkafka, version = sys.argv[1:]
assert ctypes.CDLL(rocksdb).rocksdb_open
kafka = ctypes.CDLL(librdkafka)
kafka.rd_kafka_version_str.restype = ctypes.c_char_p
assert kafka.rd_kafka_version_str().decode() == version
assert kafka.rd_kafka_mock_cluster_new' "$@" >"$work/log" 2>&1
}

# What cargo does with them. Overridden build scripts neither run nor look for headers: what they would
# have linked (OpenSSL, curl, zlib, zstd, lz4) is inside the two libraries.
settings() {
    cat <<TOML
[env]
ROCKSDB_LIB_DIR = "$natives"
LIBCLANG_PATH = "$natives"
BINDGEN_EXTRA_CLANG_ARGS = "-I$(cc -print-file-name=include)"
# librocksdb.so loads libstdc++ itself; without this a C++ compiler's files would be needed to link.
CXXSTDLIB = "c"
[target.x86_64-unknown-linux-gnu.rdkafka]
rustc-link-search = ["native=$natives"]
rustc-link-lib = ["dylib=rdkafka"]
[target.x86_64-unknown-linux-gnu.openssl]
rustc-cfg = ["openssl", "ossl101", "ossl102", "ossl110", "ossl111", "ossl300"]
[target.x86_64-unknown-linux-gnu.curl]
[target.x86_64-unknown-linux-gnu.z]
[target.x86_64-unknown-linux-gnu.zstd]
[target.x86_64-unknown-linux-gnu.lz4]
TOML
}

# Fetches the packages and takes the libraries out; says in $why what went wrong.
fetch() {
    why="$cache cannot be written"
    # Made beside its place and moved in one step: a fetch cut short leaves nothing half done.
    mkdir -p "$cache" && staging=$(mktemp -d "$cache/natives.XXXXXX") || return 1
    packages=$work/packages
    mkdir "$packages" || return 1

    say "fetching RocksDB $rocksdb, compiled (92 MB)"
    why="Maven could not fetch RocksDB"
    follow mvn --batch-mode --quiet -Dstyle.color=never dependency:copy -DoutputDirectory="$packages" \
        -Dartifact="org.rocksdb:rocksdbjni:$rocksdb" || { say "  $(latest)" && return 1; }
    why="RocksDB as Maven fetched it has another checksum than ours"
    echo "$rocksdb_jar  $packages/rocksdbjni-$rocksdb.jar" | sha256sum --check --status || return 1

    say "fetching librdkafka $librdkafka and libclang $libclang, compiled (28 MB)"
    why="pip could not fetch librdkafka and libclang with the checksums that we know"
    printf '%s\n' "confluent-kafka==$librdkafka --hash=sha256:$librdkafka_wheel" \
        "libclang==$libclang --hash=sha256:$libclang_wheel" >"$work/requirements.txt"
    follow python3 -m pip download --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --python-version 3.11 --implementation cp --abi cp311 \
        --platform manylinux_2_28_x86_64 --platform manylinux2010_x86_64 \
        --requirement "$work/requirements.txt" --dest "$packages" ||
        { say "  $(latest)" && return 1; }

    why="the packages do not hold what they should"
    unpack "$packages"/rocksdbjni-*.jar librocksdbjni-linux64.so "$staging/librocksdb.so" &&
        unpack "$packages"/confluent_kafka-*.whl "confluent_kafka.libs/$soname" "$staging/$soname" &&
        unpack "$packages"/libclang-*.whl \
            "libclang-$libclang.data/platlib/clang/native/libclang.so" "$staging/libclang.so" || return 1
    ln -s "$soname" "$staging/librdkafka.so" || return 1
    why="the libraries cannot be loaded on this system"
    loads "$staging/librocksdb.so" "$staging/librdkafka.so" "$librdkafka" || return 1
    chmod 755 "$staging"
    # Another process may have been faster; its copy is as good.
    mv -T "$staging" "$natives" 2>/dev/null || [ -d "$natives" ]
}

# Whether the compiled libraries can be used here; if not, $why says why not.
possible() {
    why="DEMO_BUILD=source asks for it"
    [ "${DEMO_BUILD:-}" != source ] || return 1
    why="there are no compiled ones for this system"
    [ "$(rustc -vV | sed -n 's/^host: //p')" = x86_64-unknown-linux-gnu ] || return 1
    why="Cargo.lock has other versions than $0 knows"
    [ "$(locked librocksdb-sys) $(locked rdkafka-sys)" = "$rocksdb $librdkafka" ] || return 1
    why="what fetches them is missing"
    scripts/prerequisites.sh demo || return 1
    [ -d "$natives" ] || fetch
}

# build HOW COMMAND...: builds, and ends with what was said if that fails.
build() {
    say "building Orloj $1"
    shift
    started=$(date +%s)
    follow "$@" || {
        tr '\r' '\n' <"$work/log" | grep -v '^ *\(Building\|Compiling\) ' >&2
        exit 1
    }
    say "built in $(($(date +%s) - started)) s"
}

# The one function that vendor/rdkafka-sys adds to librdkafka: one broker is connected, that of the
# demonstration, and it takes all requests.
additions() {
    mkdir -p "$cache/demo-target" &&
        echo 'int rd_kafka_brokers_without_api(void) { return 1; }' |
        cc -x c -c -o "$1" -
}

cores=$(getconf _NPROCESSORS_ONLN)
export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=100
say "preparing the build; a line follows every few seconds"
if possible; then
    settings >"$work/cargo.toml"
    additions "$cache/demo-target/additions.o"
    scripts/build-this-checkout.sh "$cache/demo-target"
    build "with RocksDB $rocksdb and librdkafka $librdkafka as they were fetched: the first time takes
about 5 minutes of one core, this machine has $cores" \
        cargo rustc --locked --profile demo --package orloj --bin orloj --config "$work/cargo.toml" \
        --target-dir "$cache/demo-target" -- -C "link-arg=-Wl,-rpath,$natives" \
        -C "link-arg=$cache/demo-target/additions.o"
    echo "$cache/demo-target/demo/orloj"
else
    say "RocksDB and librdkafka must be compiled: $why"
    # Otherwise the loss of the quick build would not be noticed.
    [ "${CI:-}" != true ] || [ "${DEMO_BUILD:-}" = source ] || exit 1
    scripts/prerequisites.sh
    build "with all that it stands on: the first time takes about 40 minutes of
one core, this machine has $cores" \
        cargo build --locked --package orloj --bin orloj
    echo "${CARGO_TARGET_DIR:-target}/debug/orloj"
fi
