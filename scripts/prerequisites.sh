#!/bin/sh
# Checks what building needs, with the argument `test` or `dist` what the tests or the packages need
# too, with `demo` only what building on libraries that are compiled already needs
# (scripts/build-demo.sh), with `core` only what the crate without native code needs, and with `guard`
# what counting its instructions needs.
# Installs what is missing when it may (root, or sudo without a password); else prints the one line to
# run and fails.
set -eu

missing=

# need PACKAGE CHECK...: the package is missing if the check fails.
need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

# header FILE: whether the C compiler finds a header, wherever the system keeps it.
header() {
    printf '#include <%s>\n' "$1" | cc -E -x c - -o /dev/null
}

# libclang itself: libclang-cpp, which other packages bring, is not what bindgen looks for.
libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] ||
        ls /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu 2>/dev/null | grep -Eq '^libclang(-[0-9.]+)?\.so'
}

java17() {
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}

if ! command -v cargo >/dev/null 2>&1; then
    echo "cargo is missing: install Rust 1.95 or later with rustup, then try again" >&2
    exit 1
fi

case ${1:-} in
core | guard)
    need gcc command -v cc
    need libc6-dev header stdlib.h
    [ "$1" = core ] || need valgrind command -v valgrind
    ;;
demo)
    need gcc command -v cc
    need libc6-dev header stdlib.h
    need perl command -v perl
    need curl command -v curl
    need maven command -v mvn
    need python3-pip python3 -m pip --version
    # The demonstration shows it if it is there; in CI it must be.
    [ "${CI:-}" != true ] || need kcat command -v kcat
    ;;
*)
    need build-essential command -v cc
    need build-essential command -v c++
    need build-essential command -v make
    need perl command -v perl
    need curl command -v curl
    need cmake command -v cmake
    need pkg-config command -v pkg-config
    need libclang-dev libclang
    need libssl-dev header openssl/ssl.h
    need zlib1g-dev header zlib.h
    need libcurl4-openssl-dev header curl/curl.h
    # Without it another build profile compiles all C++ again.
    need ccache command -v ccache
    ;;
esac
if [ "${1:-}" = test ]; then
    # The kit, not the runtime alone: keytool makes the certificate of the TLS test.
    need openjdk-17-jdk-headless java17
    need strace command -v strace
    need openjdk-17-jdk-headless command -v keytool
    need maven command -v mvn
    # A client that is not ours, and the instructions that a trigger costs.
    need kcat command -v kcat
    need valgrind command -v valgrind
    need jq command -v jq
    need prometheus command -v promtool
fi
if [ "${1:-}" = dist ]; then
    need python3-venv python3 -c 'import ensurepip'
    need npm command -v npm
    need binutils command -v objdump
    need dpkg-dev command -v dpkg-shlibdeps
fi

[ -n "$missing" ] || exit 0

# shellcheck disable=SC2086 # one argument a package
packages=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
packages=${packages% }
# Of prometheus the tool alone: its package also starts a server, which takes a port.
promtool='cd $(mktemp -d) && apt-get download prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C /usr/local/bin --strip-components=3 ./usr/bin/promtool && rm prometheus_*.deb'
others=$(echo " $packages " | sed 's/ prometheus / /; s/^ *//; s/ *$//')
install="apt-get update"
[ -z "$others" ] || install="$install && apt-get install -y --no-install-recommends $others"
[ "$others" = "$packages" ] || install="$install && $promtool"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing; install what your system calls these Debian packages: $packages" >&2
    exit 1
elif [ "$(id -u)" = 0 ]; then
    sudo=
elif sudo -n true 2>/dev/null; then
    sudo='sudo -n'
else
    echo "missing: $packages. Run this, then try again:" >&2
    echo "  sudo sh -c '$install'" >&2
    exit 1
fi
echo "installing $packages" >&2
DEBIAN_FRONTEND=noninteractive $sudo sh -c "$install" </dev/null >&2
