package nats

import (
	"context"
	"fmt"
	"time"

	"lockstep.internal/libs/directory"
	"lockstep.internal/services/deploys/ingest"
)

// Directory looks up agents. [directory.Directory] implements it.
type Directory interface {
	// Agent returns an agent, or false if it is unknown.
	Agent(id int64) (directory.Agent, bool)
	// Changed returns a channel that is closed with the next change.
	Changed() <-chan struct{}
	// UpToDate reports whether the directory is complete.
	UpToDate() bool
}

const (
	// defaultDirectoryTimeout is longer than the directory needs to receive a new agent.
	defaultDirectoryTimeout = 15 * time.Second
	// maxWait is the maximum time that a transaction waits for the directory.
	maxWait = time.Second
)

// agentProjects looks up the projects of agents. An agent may publish before the directory receives it, so the batch is
// retried until the timeout. It is not safe for concurrent use.
type agentProjects struct {
	directory Directory
	timeout   time.Duration
	// unknownSince is the time of the first failed lookup of each unknown agent.
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
		if !p.directory.UpToDate() {
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
