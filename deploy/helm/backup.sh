#!/bin/sh
# Backs up a release of the chart: the database, the keys and the values of the installation, in one file.
# Secrets that were made by hand, databases outside of the release, and artifacts of CI jobs are not in it.
#
#   backup.sh RELEASE NAMESPACE FILE
set -eu
[ $# -eq 3 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
release=$1 namespace=$2 file=$3
umask 077 # the file has secrets
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

helm get values "$release" --namespace "$namespace" --output yaml >"$folder/values.yaml"
kubectl -n "$namespace" get secrets -l app.kubernetes.io/part-of=lockstep -o yaml >"$folder/secrets.yaml"
sed '/^    \(resourceVersion\|uid\):/d' "$folder/secrets.yaml" >"$folder/keys.yaml"
rm "$folder/secrets.yaml"
grep -q '^  kind: Secret$' "$folder/keys.yaml" || {
	echo "Namespace $namespace has no keys of Lockstep." >&2
	exit 1
}
database=$(kubectl -n "$namespace" get statefulsets \
	-l "app.kubernetes.io/instance=$release,app.kubernetes.io/name=lockstep-postgresql" -o name)
if [ -n "$database" ]; then
	kubectl -n "$namespace" exec "$database" -- pg_dump --format=custom --username=lockstep lockstep >"$folder/lockstep.dump"
else
	echo "The database is not part of the release: back it up with pg_dump." >&2
fi
tar -cf "$file.part" -C "$folder" .
mv "$file.part" "$file"
