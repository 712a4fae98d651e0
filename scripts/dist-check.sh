#!/bin/sh
# dist-check.sh FOLDER: installs the tar.gz, the wheel, the npm package and the .deb that `make dist` put into
# FOLDER, each into a place of its own that is removed again, and runs `orloj dev` from it until it has made
# a callback. Fails if one of them takes more than a minute for that, or is not what SHA256SUMS says.
set -eu

folder=$(cd "$1" && pwd)
limit=60
port=${DIST_PORT:-8471}
work=$(mktemp -d)
cd "$work"
running=

stop() {
    for process in $running; do
        kill "$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
    done
    running=
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

now() {
    date +%s%N | cut -c -13
}

# since MOMENT: the seconds since then, with one digit.
since() {
    awk -v ms="$(($(now) - $1))" 'BEGIN { printf "%.1f", ms / 1000 }'
}

# Writes the port it listens on, then a line for each callback.
receiver() {
    exec python3 -c '
import http.server
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        print(self.path, body.decode(), flush=True)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.serve_forever()'
}

# until_time COMMAND...: repeats the command until it succeeds; after the limit, shows the log and ends.
until_time() {
    until "$@" >/dev/null 2>&1; do
        if [ $(($(now) - started)) -gt $((limit * 1000)) ]; then
            echo "$kind: no callback within $limit s; waited for: $*" >&2
            tail -n 40 "$work"/*.log >&2
            exit 1
        fi
        sleep 0.1
    done
}

register() {
    curl --silent --show-error --fail "http://127.0.0.1:$port/v1/triggers" \
        --header 'content-type: application/json' --data '{
            "triggerId": "first", "callbackUrl": "http://127.0.0.1:'"$(head -n 1 received.log)"'/first",
            "delaySeconds": 1, "payload": "hello"}'
}

# first_callback PROGRAM: the time counts from before the installation, since $started.
first_callback() {
    installed=$(since "$started")
    "$1" --version | grep -q "^orloj $version\$"
    rm -f ./*.log
    receiver >received.log 2>receiver.log &
    running=$!
    "$1" dev --set "gateway.listen=127.0.0.1:$port" >said.log 2>orloj.log &
    running="$running $!"
    until_time grep -q . received.log
    until_time register
    until_time grep -q '^/first' received.log
    taken=$(since "$started")
    stop
    echo "$kind: installed after $installed s, first callback after $taken s"
}

(cd "$folder" && sha256sum --check --quiet SHA256SUMS)
version=$(basename "$folder"/orloj-*.cdx.json .cdx.json)
version=${version#orloj-}

kind=tar.gz
started=$(now)
mkdir tar
tar -xzf "$folder"/orloj-*.tar.gz -C tar --strip-components=1
first_callback "$work/tar/orloj"

kind=wheel
started=$(now)
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-index "$folder"/orloj-*.whl
first_callback "$work/venv/bin/orloj"

kind=npm
started=$(now)
npm install --global --prefix npm --offline --no-audit --no-fund --silent "$folder"/orloj-*.tgz
first_callback "$work/npm/bin/orloj"

kind=deb
started=$(now)
# What it depends on is to be had; unpacked elsewhere, since this is not the place to change the system.
apt-get --simulate install "$folder"/orloj_*.deb >apt.log
grep -q '^Inst orloj ' apt.log
dpkg -x "$folder"/orloj_*.deb deb
first_callback "$work/deb/usr/bin/orloj"
