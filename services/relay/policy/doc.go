// Package policy decides who may reach which agent and do what there. It is pure, and denies what nothing allows.
//
// A user may do what a role in the agent's project says: a reader reads its Kubernetes API, a developer and those above do everything, other targets included. An administrator may do everything
// everywhere. A service may do what rules of the configuration say.
//
// In the cluster, each is impersonated, so that the cluster's own RBAC decides once more: see [Impersonation].
package policy
