package object

// Kind of a Kubernetes object, in lower case singular as in subjects.
type Kind string

// Kinds that the watcher reads.
const (
	Deployment         Kind = "deployment"
	StatefulSet        Kind = "statefulset"
	DaemonSet          Kind = "daemonset"
	ReplicaSet         Kind = "replicaset"
	ControllerRevision Kind = "controllerrevision"
	Pod                Kind = "pod"
)

// Kinds returns all kinds, owners first.
func Kinds() []Kind {
	return []Kind{Deployment, StatefulSet, DaemonSet, ReplicaSet, ControllerRevision, Pod}
}

// WorkspaceKinds returns the kinds of a workspace, owners first.
func WorkspaceKinds() []Kind { return []Kind{Deployment, ReplicaSet, Pod} }

// WorkloadKinds returns the kinds of workloads and their revisions. Owners are listed last, so that the owner of
// every listed revision is listed, too.
func WorkloadKinds() []Kind {
	return []Kind{ReplicaSet, ControllerRevision, Deployment, StatefulSet, DaemonSet}
}
