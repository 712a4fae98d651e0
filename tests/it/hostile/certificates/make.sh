#!/bin/sh
# Makes the certificates beside it again: of a root that only the tests trust, for a receiver at
# 127.0.0.1, until the year 2120. The key is no secret.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/index"
cat >"$work/ca.cnf" <<CONFIG
[ca]
default_ca = tests
[tests]
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
CONFIG

# certificate FILE NAME EXTENSION UNTIL KEY SIGNER...
certificate() {
    file=$1 name=$2 extension=$3 until=$4 key=$5
    shift 5
    openssl req -new -key "$key" -subj "/CN=$name" -addext "$extension" -out "$work/request"
    openssl ca -batch -notext -config "$work/ca.cnf" -startdate 20200101000000Z \
        -enddate "$until" -in "$work/request" -out "$file" "$@"
}
new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

new_key "$work/root.key"
new_key key.pem
by_root="-cert root.pem -keyfile $work/root.key"
late=21200101000000Z
certificate root.pem root basicConstraints=critical,CA:TRUE $late "$work/root.key" \
    -selfsign -keyfile "$work/root.key"
certificate self-signed.pem self-signed subjectAltName=IP:127.0.0.1 $late key.pem \
    -selfsign -keyfile key.pem
# Unquoted: two options with their values.
certificate good.pem good subjectAltName=IP:127.0.0.1 $late key.pem $by_root
certificate expired.pem expired subjectAltName=IP:127.0.0.1 20210101000000Z key.pem $by_root
certificate elsewhere.pem elsewhere subjectAltName=DNS:example.com $late key.pem $by_root
