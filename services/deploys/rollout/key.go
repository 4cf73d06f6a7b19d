package rollout

// Kinds of workloads.
const (
	Deployment  = "deployment"
	StatefulSet = "statefulset"
	DaemonSet   = "daemonset"
)

// Key names a workload. Objects that bore the same name one after the other share it; their UID tells them apart.
type Key struct {
	ClusterUID string `json:"cluster_uid"`
	Namespace  string `json:"namespace"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// String is the key as people read it: <cluster>/<namespace>/<kind>/<name>.
func (k Key) String() string { return k.ClusterUID + "/" + k.Namespace + "/" + k.Kind + "/" + k.Name }
