// Package watcher is the service that reports what is in a cluster: a leader among its replicas publishes each version of what it watches as an event on
// OBSERVED. What it watches is one or two scopes: the Deployments, ReplicaSets and pods that bear an agent's label (workspaces), and, where it is told to, the
// Deployments, StatefulSets and DaemonSets of the cluster with what keeps their revisions (workloads, which never are those of workspaces). Each scope has full
// resyncs of its own and waits for no other; they share the term of leadership, the connection, the window of messages in flight and the tick.
//
// Promises. A change is sent at once as a partial, a deletion too. Versions of one object are sent in order, one at a time; when several wait, only the latest
// of a workspace's, all of a workload's, as far as there is room. The stream's acknowledgement is the receipt: what is acknowledged is not sent again by this
// term, what is not is sent until it is, so events may be stored more than once, with the same id. The decisions are pure: [Filter] (what is told),
// [Ledger] (what is sent next), [Plan] (when all of it), [Reporter] (how it reads).
//
// A full resync is a begin, one member for each object, an end. Its members are a fresh listing of each kind, not the informer's
// store: the store tells of a version before it holds it, a listing is at its version. From before the first listing until the begin is
// stored nothing else is sent, so that no earlier event has a version above those that the begin names. A member is sent in the latest version
// known, which may be its deletion; a member too large to send is a rejected fact. All of them carry the resync's id and count; the end
// follows when all are acknowledged. So what the listings lack and is not above their versions is gone, and what
// was created later is above them. A listing may be ahead of the watch: where every version counts, the watch is waited for before the begin.
//
// Failure modes. NATS away: observations wait, and readiness says so; of what there is no room for, the next one says how much it was. Kubernetes away: watches resume; what
// vanished is reported then. One scope that cannot be read, for want of permission: the other is reported, and readiness says so. The cluster restored from a backup: versions go back, those of the Lease at the latest, the term is abandoned and a new one knows nothing. Two leaders for
// moments: events repeat, harmlessly. This process killed: the next one begins with a full resync.
package watcher
