package kube

// Kind of objects that are watched, in lower case singular as in subjects.
type Kind string

// Kinds that are watched.
const (
	Deployment         Kind = "deployment"
	StatefulSet        Kind = "statefulset"
	DaemonSet          Kind = "daemonset"
	ReplicaSet         Kind = "replicaset"
	ControllerRevision Kind = "controllerrevision"
	Pod                Kind = "pod"
)

// Kinds returns all of them, owners first.
func Kinds() []Kind {
	return []Kind{Deployment, StatefulSet, DaemonSet, ReplicaSet, ControllerRevision, Pod}
}

// WorkspaceKinds returns those that workspaces consist of, owners first.
func WorkspaceKinds() []Kind { return []Kind{Deployment, ReplicaSet, Pod} }

// WorkloadKinds returns those of workloads and of what keeps their revisions, owners last: what is listed after its owner may have one that the
// listing of owners came too early for.
func WorkloadKinds() []Kind {
	return []Kind{ReplicaSet, ControllerRevision, Deployment, StatefulSet, DaemonSet}
}
