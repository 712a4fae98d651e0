#!/bin/sh
# Fetches the official Standard Webhooks libraries of JavaScript and Go, at the versions that
# tests/signatures pins, once into the cache, and prints the folder that holds them. (python.sh
# fetches that of Python.)
set -eu

source=$(cd "$(dirname "$0")/../tests/signatures" && pwd)
pins=$(cat "$source"/package.json "$source"/go.* "$source"/verify.go)
cache=${ORLOJ_CACHE:-$HOME/.cache/orloj}
home=$cache/webhook-libraries-$(printf %s "$pins" | cksum | cut -d ' ' -f 1)

if [ -d "$home" ]; then
    echo "$home"
    exit 0
fi
for program in node npm go; do
    command -v "$program" >/dev/null 2>&1 || {
        echo "$program is missing: Debian has nodejs, npm and golang" >&2
        exit 1
    }
done

mkdir -p "$cache"
# Made beside its place and moved in one step: a fetch cut short leaves nothing half done.
staging=$(mktemp -d "$cache/webhook-libraries.XXXXXX")
trap 'rm -rf "$staging"' EXIT INT TERM
{
    cp "$source/package.json" "$staging/"
    npm install --prefix "$staging" --no-package-lock --no-audit --no-fund --silent
    (cd "$source" && go build -o "$staging/verify-go" verify.go)
} </dev/null >&2
chmod 755 "$staging"
mv -T "$staging" "$home" 2>/dev/null || [ -d "$home" ]
echo "$home"
