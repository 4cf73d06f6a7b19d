package nats

import (
	"context"
	"fmt"
	"time"

	"lockstep.internal/libs/directory"
	"lockstep.internal/services/deploys/ingest"
)

// Directory has the agents. [directory.Directory] implements it.
type Directory interface {
	// Agent returns an agent; false if there is none.
	Agent(id int64) (directory.Agent, bool)
	// Changed returns a channel that is closed with the next change.
	Changed() <-chan struct{}
	// Following reports whether the directory is complete.
	Following() bool
}

const (
	// defaultDirectoryTimeout exceeds the time until the directory has a new agent.
	defaultDirectoryTimeout = 15 * time.Second
	// maxWait limits how long a transaction stays open for the directory.
	maxWait = time.Second
)

// agentProjects resolves agents to projects. An agent may publish before the directory has it: the batch is retried
// until the timeout. It is not safe for concurrent use.
type agentProjects struct {
	directory Directory
	timeout   time.Duration
	// unknownSince has the agents that are waited for.
	unknownSince map[int64]time.Time
}

// project implements [ingest.Projects].
func (p *agentProjects) project(ctx context.Context, agentID int64) (int64, error) {
	wait := time.NewTimer(maxWait)
	defer wait.Stop()
	for {
		changed := p.directory.Changed()
		if agent, known := p.directory.Agent(agentID); known {
			delete(p.unknownSince, agentID)
			return agent.ProjectID, nil
		}
		if !p.directory.Following() {
			delete(p.unknownSince, agentID)
		} else if since, waiting := p.unknownSince[agentID]; !waiting {
			p.unknownSince[agentID] = time.Now()
		} else if time.Since(since) >= p.timeout {
			return 0, ingest.UnknownAgentError{AgentID: agentID}
		}
		select {
		case <-changed:
		case <-wait.C:
			return 0, fmt.Errorf("agent %d: not in the directory yet", agentID)
		case <-ctx.Done():
			return 0, fmt.Errorf("agent %d: not in the directory yet: %w", agentID, context.Cause(ctx))
		}
	}
}
