#!/bin/sh
# Installs a release of the chart from a file of backup.sh: the keys and the database first, then the services. Each
# schema is restored as the role of its service, since the dump may have code of somebody who took a service over. The
# namespace has the name that it had, and is new. Restore a database outside of the release, and Secrets that were made
# by hand, before. Further arguments go to helm, such as --set image.tag=0.2.0.
#
#   restore.sh RELEASE NAMESPACE FILE [ARGUMENT...]
set -eu
[ $# -ge 3 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
release=$1 namespace=$2 file=$3
shift 3
chart=$(dirname "$0")/lockstep
umask 077 # the file has secrets
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -xf "$file" -C "$folder"

kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
kubectl -n "$namespace" apply -f "$folder/keys.yaml"
if [ -f "$folder/lockstep.dump" ]; then
	helm install "$release" "$chart" --namespace "$namespace" --values "$folder/values.yaml" "$@" \
		--wait --wait-for-jobs --set state.enabled=false,deploys.enabled=false,runners.enabled=false,admission.enabled=false,router.enabled=false,gateway.enabled=false,relay.enabled=false
	database=$(kubectl -n "$namespace" get statefulsets \
		-l "app.kubernetes.io/instance=$release,app.kubernetes.io/name=lockstep-postgresql" -o name)
	for service in state deploys runners admission; do
		kubectl -n "$namespace" exec -i "$database" -- \
			pg_restore --no-owner --no-privileges --single-transaction --schema="$service" \
			--username="lockstep_$service" --dbname=lockstep <"$folder/lockstep.dump"
	done
fi
helm upgrade --install "$release" "$chart" --namespace "$namespace" --reset-values --values "$folder/values.yaml" "$@"
