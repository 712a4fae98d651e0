#!/bin/sh
# Shows Orloj at work, with real records through real sockets: a callback, a fire into a topic, a
# cancel in time. Then stays up; with DEMO=once it ends, and fails if anything did not happen.
set -eu
cd "$(dirname "$0")/.."

http_port=${DEMO_PORT:-8470}
work=$(mktemp -d)
running=

# Everything started here ends here, by its process id.
stop() {
    for process in $running; do
        kill "$process" 2>/dev/null || true
    done
    for process in $running; do
        wait "$process" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

# within SECONDS COMMAND...: repeats the command until it succeeds or the time is up.
within() {
    tries=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.1
    done
}

happened() {
    printf '  ✓ %s\n' "$1"
}

missed() {
    printf '  ✗ %s\n' "$1"
    printf '\nwhat the program said:\n' >&2
    tail -n 40 "$work/orloj.log" >&2
    exit 1
}

# A receiver of callbacks in the one language that every system with a compiler has: it writes the
# port it listens on, then one line a request.
receiver() {
    exec perl -MIO::Socket::INET -e '
        $| = 1;
        my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 16) or die "$@";
        print $server->sockport, "\n";
        while (my $client = $server->accept) {
            my ($head, $length) = ("", 0);
            while (my $line = <$client>) {
                $length = $1 if $line =~ /^content-length:\s*(\d+)/i;
                last if $line =~ /^\r?\n$/;
                $head .= $line if $line =~ /^(POST|x-trigger)/i;
            }
            read $client, my $body, $length;
            $head =~ s/\r?\n/ | /g;
            print "$head$body\n";
            print $client "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            close $client;
        }'
}

listening() {
    [ -s "$work/receiver" ]
}

greeted() {
    kill -0 "$dev" && grep -q '^Orloj runs' "$work/orloj.out"
}

arrived() {
    grep -q "$1" "$2"
}

orloj=$(scripts/build-demo.sh)

"$orloj" dev --set "gateway.listen=127.0.0.1:$http_port" >"$work/orloj.out" 2>"$work/orloj.log" &
dev=$!
running=$dev
within 60 greeted || missed "orloj dev did not become ready within a minute"
cat "$work/orloj.out"
kafka=$(sed -n 's/^ *Kafka *//p' "$work/orloj.out")
http=$(sed -n 's/^ *HTTP *//p' "$work/orloj.out")

receiver >"$work/receiver" &
running="$running $!"
within 10 listening || missed "the receiver did not start"
port=$(head -n 1 "$work/receiver")
"$orloj" tail playground --from-beginning --bootstrap-servers "$kafka" >"$work/playground" &
running="$running $!"

register="$orloj register --bootstrap-servers $kafka --topic playground"
echo "Registering:"
# Not --json, which says the same: curl knows it since 7.82, and many systems have an older one.
curl --silent --show-error --fail "$http/v1/triggers" -H 'Content-Type: application/json' -d '{
    "triggerId": "demo-callback", "callbackUrl": "http://127.0.0.1:'"$port"'/hook",
    "delaySeconds": 1, "payload": {"tea": "ready"}}' >"$work/answer" ||
    missed "the HTTP API did not take a trigger"
happened "over HTTP: $(cat "$work/answer")"
$register demo-topic --in 1s --payload 'tea is ready' --wait >"$work/answer" ||
    missed "the owner did not accept a record in headers form"
happened "over Kafka, in headers form: $(cat "$work/answer")"
$register demo-cancelled --in 3s --payload 'never seen' >"$work/answer" ||
    missed "a trigger to be cancelled was not written"
happened "another, to be cancelled: $(cat "$work/answer")"
# Due after the cancelled one: once it fired, that one's time has passed.
$register demo-after --in 4s --payload 'later' >"$work/answer" ||
    missed "a trigger to wait for was not written"
if command -v kcat >/dev/null 2>&1; then
    echo 'demo-kcat:from kcat' | kcat -P -b "$kafka" -t orloj.triggers -K: \
        -H orloj-delay=1000 -H orloj-target-topic=playground 2>>"$work/orloj.log" ||
        missed "kcat could not write a trigger"
    happened "with kcat, and its own partitioner"
elif [ "${CI:-}" = true ]; then
    missed "kcat is not installed: scripts/prerequisites.sh test installs it"
fi
"$orloj" cancel demo-cancelled --wait --bootstrap-servers "$kafka" >"$work/answer" ||
    missed "the tombstone did not cancel"
happened "its tombstone: $(cat "$work/answer")"

echo "Happening later:"
within 20 arrived demo-callback "$work/receiver" || missed "the callback did not come"
happened "called back: $(grep demo-callback "$work/receiver")"
within 20 arrived demo-topic "$work/playground" || missed "nothing fired into the topic"
happened "fired into the topic: $(grep demo-topic "$work/playground" | tr '\t' ' ')"
if command -v kcat >/dev/null 2>&1; then
    within 20 arrived demo-kcat "$work/playground" || missed "what kcat registered did not fire"
    happened "what kcat registered: $(grep demo-kcat "$work/playground" | tr '\t' ' ')"
fi
within 20 arrived demo-after "$work/playground" || missed "the last trigger did not fire"
! arrived demo-cancelled "$work/playground" || missed "the cancelled trigger fired"
happened "the cancelled one did not fire, and its time has passed"

[ "${DEMO:-}" != once ] || exit 0
printf '\nIt stays up for you to try. Ctrl-C ends it.\n'
wait "$dev"
