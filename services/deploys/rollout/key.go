package rollout

// Kinds of workloads.
const (
	Deployment  = "deployment"
	StatefulSet = "statefulset"
	DaemonSet   = "daemonset"
)

// Key names a workload. Successive objects of one name share it; their UIDs differ.
type Key struct {
	ClusterUID string `json:"cluster_uid"`
	Namespace  string `json:"namespace"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// String returns <cluster>/<namespace>/<kind>/<name>.
func (k Key) String() string { return k.ClusterUID + "/" + k.Namespace + "/" + k.Kind + "/" + k.Name }
