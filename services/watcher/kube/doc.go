// Package kube reads Kubernetes for the watcher: it watches and lists the objects of a [Scope], takes
// part in the leader election and identifies the cluster.
//
// [Client.Watch] reports to a [Handler] every object that exists when the watch starts, and every later
// change. Calls for one kind in one namespace come one at a time and in order. A broken or expired watch
// starts again with a list; objects that disappeared meanwhile are reported as deleted in their last
// known version. A version that decreases is reported: the cluster was restored from a backup.
//
// [Client.List] reads one kind, each namespace at one version, which is not older than any version
// watched before the call. [Client.Watch] lists in pages or a stream, [Client.List] in pages. Both trim
// each object immediately: no untrimmed list is held in memory. For workspaces [Client.List] reads pages of
// metadata, and a page again, whole, only if an object in it is not held in its version.
//
// [Client.NewElector] returns an elector that also reports a decreased version of the Lease. Two processes
// can be leader briefly after one was paused. So everything that a leader writes must tolerate a second leader.
//
// When Kubernetes is unavailable, everything retries; [Watch.Err] and the elector's Err return the reason.
package kube
