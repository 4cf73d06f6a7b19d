// Package kube is the dispatcher's hand in the cluster.
//
// [Cluster.Apply] and [Cluster.Terminate] bring a workspace to what is desired. Each is a series of steps that may end after any of them, by
// an error or by the end of the process; calling it again converges:
//
//  1. The inventory, a ConfigMap per workspace in the agent's own namespace, receives the desired revision and every object about to be
//     made, by compare-and-set. A lower revision ends here, so an old leader cannot undo what a new one does, and no object
//     is ever made that the inventory does not know.
//  2. The namespace, the Secrets and the manifests are applied in order, by server-side apply with force.
//  3. What the inventory knows and nobody desires any more is deleted, and then the inventory forgets it.
//
// [Cluster.Repair] applies again what was applied before and tells what it has found changed, from the fields that the dispatcher owns.
//
// Nothing is touched that does not carry the labels of agent and workspace: an object is looked at before it is changed for the first time, and
// changed and deleted by its UID from then on. Errors are explained by package failure. [Election] sees to it that one
// dispatcher works at a time; [Namespaces] knows what has become of the namespaces.
package kube
