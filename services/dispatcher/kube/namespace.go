package kube

import (
	"context"
	"strconv"

	"lockstep.internal/libs/leader"
)

// AgentNamespace returns the agent's own namespace, which holds the Lease and the inventories.
func AgentNamespace(agent int64) string { return "lockstep-agent-" + strconv.FormatInt(agent, 10) }

// EnsureAgentNamespace creates the agent's own namespace when it does not exist.
func (c *Client) EnsureAgentNamespace(ctx context.Context, agent int64) error {
	return leader.EnsureNamespace(ctx, c.core, AgentNamespace(agent))
}
