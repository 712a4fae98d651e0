#!/bin/sh
# Fetches the npm packages that tests/FOLDER pins in its package.json, once into the cache, and prints
# the folder that holds them.
set -eu

folder=$1
pins=$(cd "$(dirname "$0")/../tests/$folder" && pwd)/package.json
cache=${ORLOJ_CACHE:-$HOME/.cache/orloj}
home=$cache/node-$folder-$(cksum <"$pins" | cut -d ' ' -f 1)

if [ ! -d "$home" ]; then
    for program in node npm; do
        command -v "$program" >/dev/null 2>&1 || {
            echo "$program is missing: Debian has nodejs and npm" >&2
            exit 1
        }
    done
    mkdir -p "$cache"
    # Made beside its place and moved in one step: a fetch cut short leaves nothing half done.
    staging=$(mktemp -d "$cache/node-$folder.XXXXXX")
    trap 'rm -rf "$staging"' EXIT INT TERM
    {
        cp "$pins" "$staging/"
        npm install --prefix "$staging" --no-package-lock --no-audit --no-fund --silent
    } </dev/null >&2
    chmod 755 "$staging"
    mv -T "$staging" "$home" 2>/dev/null || [ -d "$home" ]
fi
echo "$home"
