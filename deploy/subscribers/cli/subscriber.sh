#!/bin/sh
# Prints deploy facts, one JSON document a line, and goes on where it ended: what happens while it is away waits for it.
#
#   ./subscriber.sh CREDENTIALS
#
# CREDENTIALS is the file that `lockstep subscriber create` wrote; it is a context of the nats command line (github.com/nats-io/natscli), which
# this needs. Each fact is acknowledged once it is printed. One that was not comes again after half a minute.
set -eu

[ $# = 1 ] || { echo "usage: $0 CREDENTIALS" >&2; exit 2; }
credentials=$1
# field NAME: the value of a field of the credentials, which stand one a line.
field() { sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p" "$credentials"; }

while :; do
  # It asks for one fact, waits for it for a while, prints and acknowledges it. Nothing to read, and no connection, are no reason to end.
  nats --context "$credentials" --inbox-prefix "$(field inbox_prefix)" --timeout 10s \
    consumer next "$(field stream)" "$(field consumer)" --raw 2>/dev/null || sleep 1
done | grep --line-buffered . # a wait that ends with nothing leaves an empty line
