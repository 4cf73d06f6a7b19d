#!/bin/sh
# Prints deploy facts, one JSON document per line. A restart continues with the first unacknowledged fact.
#
#   ./subscriber.sh CREDENTIALS
#
# CREDENTIALS is the file that `lockstep subscriber create` writes. It is a context of the nats command line, which this script
# needs (github.com/nats-io/natscli). A fact without an acknowledgment is redelivered after half a minute.
set -eu

[ $# = 1 ] || { echo "usage: $0 CREDENTIALS" >&2; exit 2; }
credentials=$1
fail() { echo "$0: $1" >&2; exit 2; }
[ -r "$credentials" ] || fail "cannot read $credentials: \`lockstep subscriber create NAME --credentials FILE\` writes it"
command -v nats >/dev/null || fail "the nats command line is missing: see https://github.com/nats-io/natscli"
# field NAME: the value of a field of the credentials, which has one field per line.
field() { sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p" "$credentials"; }
for name in url stream consumer inbox_prefix; do
  [ -n "$(field $name)" ] || fail "$credentials has no $name: it is no file of \`lockstep subscriber create\`"
done
connected() { nats --context "$credentials" --inbox-prefix "$(field inbox_prefix)" --timeout 10s "$@"; }
said=$(connected rtt 2>&1) || fail "cannot connect: $said"

while :; do
  # Request one fact, wait for it, print and acknowledge it. Continue without a fact and without a connection.
  connected consumer next "$(field stream)" "$(field consumer)" --raw 2>/dev/null || sleep 1
done | grep --line-buffered . # without a fact the output is an empty line
