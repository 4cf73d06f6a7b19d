// Package kube is the watcher's side to Kubernetes: it watches and lists the objects of a [Scope], takes part in the election of the
// one watcher that reports, and knows which cluster this is. It knows nothing of events and streams.
//
// A [Scope] is what is watched: the objects of an agent's [Workspaces], found by a label and kept as Kubernetes' own types, or [Workloads] whose rollouts are
// followed, chosen here and kept as [Workload] and [Revision].
//
// [Client.Watch] tells a [Handler] of each object that is there when watching begins and of every change after it: in order for
// one object, one call at a time for one kind in one namespace. A watch that breaks or is too old is begun anew; what vanished meanwhile is told as
// gone, in the last version known. Versions that went back are told as such: the cluster was restored from a backup.
//
// [Client.List] reads one kind whole, at one version, not older than anything watched before the call. Objects are trimmed to what is
// reported before they are kept: ReplicaSets are only ever read as metadata, and their versions that say nothing new are not told.
//
// [Elector.Run] calls lead while this process holds the Lease and gives the Lease back after lead has returned. Two processes may lead
// at once for moments (a paused one does not know that its time is over): what they write must not depend on being alone.
//
// Kubernetes being away is never an error that ends anything: it is waited for, and [Watch.Err] and [Elector.Err] say so.
package kube
