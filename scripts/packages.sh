#!/bin/sh
# packages.sh python|node|go FOLDER: fetches what tests/FOLDER pins, once into the cache, and prints the
# Python that has the packages, the folder that holds them, or the Go program that is built with them.
set -eu

kind=$1
folder=$2
source=$(cd "$(dirname "$0")/../tests/$folder" && pwd)
cache=${ORLOJ_CACHE:-$HOME/.cache/orloj}

case $kind in
python) pins=requirements.txt needs=python3 debian=python3-venv ;;
node) pins=package.json needs='node npm' debian='nodejs and npm' ;;
go) pins='go.* *.go' needs=go debian=golang ;;
*)
    echo "$kind? Say python, node or go" >&2
    exit 1
    ;;
esac
# Unquoted: some are patterns.
home=$cache/$kind-$folder-$(cd "$source" && cat $pins | cksum | cut -d ' ' -f 1)

if [ ! -d "$home" ]; then
    for program in $needs; do
        command -v "$program" >/dev/null 2>&1 || {
            echo "$program is missing: Debian has $debian" >&2
            exit 1
        }
    done
    mkdir -p "$cache"
    # Made beside its place and moved in one step: a fetch cut short leaves nothing half done.
    staging=$(mktemp -d "$cache/$kind-$folder.XXXXXX")
    trap 'rm -rf "$staging"' EXIT INT TERM
    case $kind in
    python)
        python3 -m venv --copies "$staging"
        "$staging/bin/python" -m pip install --quiet --disable-pip-version-check \
            --requirement "$source/$pins"
        ;;
    node)
        cp "$source/$pins" "$staging/"
        npm install --prefix "$staging" --no-package-lock --no-audit --no-fund --silent
        ;;
    go) (cd "$source" && go build -o "$staging/program" .) ;;
    esac </dev/null >&2
    chmod 755 "$staging"
    mv -T "$staging" "$home" 2>/dev/null || [ -d "$home" ]
fi

case $kind in
python) echo "$home/bin/python" ;;
node) echo "$home" ;;
go) echo "$home/program" ;;
esac
