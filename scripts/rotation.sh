#!/usr/bin/env bash
# Prints which of the long groups of tests a commit leaves out, as options of the tests: one half of
# the groups, or the other one, by the first digit of the commit's hash. So in time all are run.
set -euo pipefail

if [[ $# -ne 1 || ! $1 =~ ^[0-9a-f]{40}$ ]]; then
    echo "usage: $0 HASH    the whole hash of a commit" >&2
    exit 1
fi

first=(documented:: notifications:: bounds::hanging_caller bounds::hot_id bounds::hot_view)
second=(short_fault_cases_pass readiness_members:: readiness_table:: readiness_unreadable:: worker_readiness::
    bounds::slow_broker bounds::slow_receiver bounds::slow_view)

left_out=("${first[@]}")
if ((16#${1:0:1} % 2)); then
    left_out=("${second[@]}")
fi
printf -- '--skip %s ' "${left_out[@]}"
echo
