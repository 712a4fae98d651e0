#!/bin/sh
# Builds the program of an earlier commit, once into the cache, and prints where it is: `make upgrade` replaces it by
# this one and back. Usage: scripts/earlier-release.sh <commit>
set -eu

commit=$(git rev-parse --verify "$1^{commit}")
home=${ORLOJ_CACHE:-$HOME/.cache/orloj}/releases/$commit

if [ -x "$home/orloj" ]; then
    echo "$home/orloj"
    exit 0
fi

echo "building the program of $commit: its native libraries take 20 minutes on two cores" >&2
sources=$(mktemp -d)
trap 'git worktree remove --force "$sources/tree" >/dev/null 2>&1 || true; rm -rf "$sources"' EXIT INT TERM
git worktree add --quiet --detach "$sources/tree" "$commit"
# In a target directory of its own, so that this program is not built again afterwards.
(cd "$sources/tree" && CARGO_TARGET_DIR="$home/target" cargo build --locked --bin orloj >&2)
cp "$home/target/debug/orloj" "$home/orloj.new"
mv "$home/orloj.new" "$home/orloj"
rm -rf "$home/target"
echo "$home/orloj"
