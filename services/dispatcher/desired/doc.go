// Package desired decodes the desired state of one workspace and checks it against the agent's policy.
//
// [Decode] decodes a desired event. It takes the workspace id from the subject only. [Policy] defines what the
// control plane may apply in this cluster: kinds, namespaces, labels, size. The agent enforces it even if the
// control plane is compromised. [Prune] returns the objects of the inventory that are no longer desired. All
// functions are pure. A rejection is a [failure.Failure] with a message for the user.
//
// A desired state never contains Secret values. A workspace references its Secrets by name and digest. A Secret
// among the manifests is rejected.
package desired
