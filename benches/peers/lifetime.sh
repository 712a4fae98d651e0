#!/bin/sh
# Runs a peer's driver: `lifetime.sh <command>...`.
#
# Law: nothing outlives the caller. The driver has a process group of its own, in which it starts
# servers and schedulers; all of it is killed when the driver ends, when this shell is told to end,
# or when standard input closes (as it does if the caller is killed), should that be a pipe.
set -eu

setsid "$@" </dev/null &
driver=$!
stop() { kill -s KILL -- "-$driver" 2>/dev/null || true; }
trap stop EXIT
trap 'exit 143' INT TERM HUP

if [ -p /dev/stdin ]; then
    # A background job's own standard input would be empty.
    exec 3<&0
    setsid sh -c 'trap "" INT TERM HUP; cat <&3 >/dev/null; kill -s KILL -- "-$1"' - "$driver" \
        >/dev/null 2>&1 &
    watchdog=$!
    trap 'stop; kill -s KILL -- "-$watchdog" 2>/dev/null || true' EXIT
fi

wait "$driver"
