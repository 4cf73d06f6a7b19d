// Package kubename has the names that several of Lockstep's programs use in clusters: those of impersonated users, and
// of the ClusterRole that owners of workspaces have in their namespaces.
package kubename

import "strconv"

// Prefix of impersonated user and group names.
const Prefix = "lockstep:"

// UserPrefix is the prefix of the Kubernetes users of people.
const UserPrefix = Prefix + "user:"

// User is the Kubernetes user of a person.
func User(id int64) string { return UserPrefix + strconv.FormatInt(id, 10) }

// OwnerRole is the ClusterRole of an agent's cluster that the dispatcher binds to the owner of a workspace.
func OwnerRole(agentID int64) string {
	return "lockstep-agent-" + strconv.FormatInt(agentID, 10) + "-workspace-owner"
}
