package environment

// Kind is the kind of environments in facts and subjects.
const Kind = "group"

// Key identifies an environment. With the annotation lockstep.dev/deploy-group-scope: cluster on
// each workload, an environment spans namespaces and Namespace is empty. Otherwise each namespace
// has its own.
type Key struct {
	ClusterUID string `json:"cluster_uid"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// String returns <cluster>/<namespace>/group/<name>.
func (k Key) String() string { return k.ClusterUID + "/" + k.Namespace + "/" + Kind + "/" + k.Name }
