package kube

// Kind of objects that are watched, in lower case singular as in subjects.
type Kind string

// Kinds that are watched.
const (
	Deployment Kind = "deployment"
	ReplicaSet Kind = "replicaset"
	Pod        Kind = "pod"
)

// Kinds returns all of them, owners first.
func Kinds() []Kind { return []Kind{Deployment, ReplicaSet, Pod} }
