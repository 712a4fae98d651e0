#!/bin/sh
# Fetches the Python packages that tests/FOLDER pins in its requirements.txt, once into the cache, and
# prints the Python that has them.
set -eu

folder=$1
pins=$(cd "$(dirname "$0")/../tests/$folder" && pwd)/requirements.txt
cache=${ORLOJ_CACHE:-$HOME/.cache/orloj}
home=$cache/python-$folder-$(cksum <"$pins" | cut -d ' ' -f 1)

if [ ! -d "$home" ]; then
    command -v python3 >/dev/null 2>&1 || {
        echo "python3 is missing: Debian has python3-venv" >&2
        exit 1
    }
    mkdir -p "$cache"
    # Made beside its place and moved in one step: a fetch cut short leaves nothing half done.
    staging=$(mktemp -d "$cache/python-$folder.XXXXXX")
    trap 'rm -rf "$staging"' EXIT INT TERM
    {
        python3 -m venv --copies "$staging"
        "$staging/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$pins"
    } </dev/null >&2
    chmod 755 "$staging"
    mv -T "$staging" "$home" 2>/dev/null || [ -d "$home" ]
fi
echo "$home/bin/python"
