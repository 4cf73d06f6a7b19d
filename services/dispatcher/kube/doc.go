// Package kube applies workspaces to the cluster.
//
// [Cluster.Apply] and [Cluster.Terminate] may be interrupted after any step, by an error or a crash. A repeated
// call converges:
//
//  1. The inventory, a ConfigMap per workspace in the agent's own namespace, receives the desired
//     revision and every object to be created, by compare-and-set. A lower revision is rejected here,
//     so an old leader cannot overwrite the work of a new one, and no object is created that the
//     inventory does not list.
//  2. The namespace, the Secrets and the manifests are applied in order, by server-side apply with
//     force.
//  3. Objects of the inventory that are no longer desired are deleted, then removed from the
//     inventory.
//
// [Cluster.Repair] applies a revision again. It detects changes by others in managedFields.
//
// An object of another owner is not changed: the object is read and its labels of agent and workspace
// are checked, unless its UID is cached or this call created the namespace. An object with a known
// UID is changed or deleted only under that UID.
//
// Errors are a [failure.Failure]. [Namespaces] watches the workspaces' namespaces.
package kube
