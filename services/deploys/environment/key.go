package environment

// Kind of environments in facts and subjects.
const Kind = "group"

// Key names an environment. Workloads of several namespaces make one when each bears the annotation
// lockstep.dev/deploy-group-scope: cluster; its namespace is then empty. Otherwise equal names in
// two namespaces are two environments.
type Key struct {
	ClusterUID string `json:"cluster_uid"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// String is the key as people read it: <cluster>/<namespace>/group/<name>.
func (k Key) String() string { return k.ClusterUID + "/" + k.Namespace + "/" + Kind + "/" + k.Name }
