// Package policy decides which caller may access which target of which agent. The checks are pure functions and
// deny by default. [ReadRules] reads a file.
//
// A user's role in the agent's project decides. A reader may read the Kubernetes API. A developer or higher may
// do everything. An administrator may do everything everywhere. A service needs a matching rule of the
// configuration. Only services reach workspaces: the gateway decides who enters one. The scope of a user's token
// limits it further: only write allows more than reading the Kubernetes API.
//
// The relay impersonates callers, so that the cluster's RBAC applies, too: see [Impersonation].
package policy
