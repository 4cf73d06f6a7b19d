// Package object defines what the watcher keeps of Kubernetes objects. It has no clock and no I/O. Objects are
// immutable.
//
// A [Version] is one version of one object as the watcher observed it. What is kept of the object
// depends on its scope:
//
//   - workspaces: [Encoded], a trimmed Deployment, ReplicaSet or pod in compressed protobuf, which [Encoder] makes;
//   - tracked workloads: [Workload] and [Revision], compact forms that [Compactor] makes.
//
// Versions of objects with one [Name] are totally ordered by resourceVersion, also when one object
// replaces another. Versions of different kinds are not comparable.
package object
