#!/bin/sh
# Builds the Go program in tests/FOLDER with the modules that its go.mod pins, once into the cache, and
# prints where it is.
set -eu

folder=$1
source=$(cd "$(dirname "$0")/../tests/$folder" && pwd)
cache=${ORLOJ_CACHE:-$HOME/.cache/orloj}
program=$cache/go-$folder-$(cat "$source"/go.* "$source"/*.go | cksum | cut -d ' ' -f 1)

if [ ! -x "$program" ]; then
    command -v go >/dev/null 2>&1 || {
        echo "go is missing: Debian has golang" >&2
        exit 1
    }
    mkdir -p "$cache"
    # Made beside its place and moved in one step: a build cut short leaves nothing half done.
    staging=$(mktemp -d "$cache/go-$folder.XXXXXX")
    trap 'rm -rf "$staging"' EXIT INT TERM
    (cd "$source" && go build -o "$staging/program" .) </dev/null >&2
    mv -T "$staging/program" "$program"
fi
echo "$program"
