#!/usr/bin/env bash
# Prints which of the long groups of tests a commit leaves out, as options of the tests: all but one
# third of the groups, which depends on the first digit of the commit's hash. So in time all are run.
set -euo pipefail

if [[ $# -ne 1 || ! $1 =~ ^[0-9a-f]{40}$ ]]; then
    echo "usage: $0 HASH    the whole hash of a commit" >&2
    exit 1
fi

# Each third takes about five minutes, on two processors.
thirds=(
    "notifications:: readiness_members:: readiness_table:: readiness_unreadable:: worker_readiness::
        bounds::hanging_caller bounds::slow_view"
    "kafka_clients:: short_fault_cases_pass bounds::slow_broker bounds::slow_receiver"
    "fires_once:: documented::every_command documented::help:: bounds::hot_id bounds::hot_view"
)

unset "thirds[$((16#${1:0:1} % 3))]"
for group in ${thirds[*]}; do
    printf -- '--skip %s ' "$group"
done
echo
