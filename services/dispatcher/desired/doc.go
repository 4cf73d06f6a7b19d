// Package desired is what the control plane asks of one workspace, and what this agent lets it ask.
//
// [Decode] reads a desired event; the subject alone says which workspace it is about. [Policy] is
// the agent's own word on what may reach its cluster, whatever the control plane or somebody in its
// place says: kinds, namespaces, labels, size. [Prune] is the set of objects that are no longer
// asked for. All are pure: the same event always has the same answer, and what is refused is
// refused with a [failure.Failure] that a user can read.
//
// Secret values are never part of it. A workspace names its Secrets with a digest; a Secret among
// the manifests is refused.
package desired
