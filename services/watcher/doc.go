// Package watcher reports the objects of a Kubernetes cluster. One replica, the leader, publishes
// observed versions as events on OBSERVED. It reports the Deployments, ReplicaSets and pods of
// workspaces and, if enabled, tracked workloads: other Deployments, StatefulSets and DaemonSets with
// their revisions, and the pods of rollouts without progress that do not start. Each of the two scopes
// has its own full resyncs.
//
// Ordering: versions of one name are published in order, one at a time, also when one object
// replaces another. For workspaces the latest version is published, for tracked workloads every version.
// Delivery: at least once. A leader publishes a version until it is acknowledged or, for workspaces, a
// newer one replaces it. All copies have one event id.
//
// Failure modes. NATS unavailable: versions wait; dropped ones are counted in the next. Kubernetes
// unavailable: watches retry and missed deletions are reported. A scope without permission: the
// other one is reported. A restored cluster: the session ends and a new one lists everything. Two
// leaders for a short time: events are published twice. A killed process: the next leader starts with a full resync.
//
// Packages: session runs a leader session; object, filter, delivery, inflight, resync and report are pure;
// kube and nats are the adapters.
package watcher
