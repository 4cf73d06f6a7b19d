package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/directory"
	"lockstep.internal/services/deploys/postgres"
)

// Directory knows the agents. A [directory.Directory] is one.
type Directory interface {
	// Agent returns the agent, and false for one that there is not.
	Agent(id int64) (directory.Agent, bool)
	// Changed is closed with the next change of anything.
	Changed() <-chan struct{}
	// Following says whether what is not known is known not to be.
	Following() bool
}

const (
	// defaultPatience is longer than the directory takes to tell of an agent that was registered a moment ago.
	defaultPatience = 15 * time.Second
	// atATime is how long a transaction stays open for the directory.
	atATime = time.Second
)

// stranger is an agent that the directory does not know.
type stranger struct{ agentID int64 }

func (s stranger) Error() string {
	return fmt.Sprintf("agent %d is not in the directory: once it is, the message can be retried", s.agentID)
}

// askClaims adds what a message needs to be admitted.
func (i *Ingest) askClaims(ask *postgres.Ask, o *Observed) {
	if o.ClusterUID == "" {
		return
	}
	if _, known := i.known.reporters[o.AgentID]; !known && !slices.Contains(ask.Reporters, o.AgentID) {
		ask.Reporters = append(ask.Reporters, o.AgentID)
	}
	if _, known := i.known.claims[o.ClusterUID]; !known && !slices.Contains(ask.Claims, o.ClusterUID) {
		ask.Claims = append(ask.Claims, o.ClusterUID)
	}
}

// admit refuses what agents say of the clusters of other projects. A cluster is the project's whose agent told of a workload or a full resync there first; it
// is noted with what follows from that. Of clocks it is the same, but they claim nothing and are left out without a word: an agent that has no concern with
// workloads has one too, and may share the cluster.
func (in *intake) admit(ctx context.Context, batch []cursor.Message[Observed]) error {
	var refused cursor.Poisons
	clusters := map[int64]string{}
	for m := range batch {
		o := &batch[m].Value
		if o.ClusterUID == "" {
			continue
		}
		project, err := in.project(ctx, o.AgentID, batch[m].Sequence)
		if unknown, ok := errors.AsType[stranger](err); ok {
			refused = append(refused, &cursor.Poison{Sequence: batch[m].Sequence, Err: unknown})
			continue
		}
		if err != nil {
			return err
		}
		owner := in.owner(o.ClusterUID, batch[m].Sequence)
		switch {
		case owner == project:
		case owner != 0 && o.Tick:
			*o = Observed{}
			in.Metrics.foreign()
			continue
		case owner != 0:
			in.Metrics.foreign()
			refused = append(refused, &cursor.Poison{Sequence: batch[m].Sequence, Err: fmt.Errorf(
				"cluster %q: is of project %d, whose agent reported it first; agent %d is of project %d", o.ClusterUID, owner, o.AgentID, project)})
			continue
		}
		before, moved := clusters[o.AgentID]
		if !moved {
			before = in.roster.Agent(o.AgentID).ClusterUID
		}
		if before == "" || o.Begun != nil {
			clusters[o.AgentID], before = o.ClusterUID, o.ClusterUID
		}
		if owner == 0 && before == o.ClusterUID && !o.Tick && !in.silent {
			in.claims = append(in.claims, postgres.Claim{ClusterUID: o.ClusterUID, Since: batch[m].Sequence, ProjectID: project, AgentID: o.AgentID})
		}
	}
	if len(refused) > 0 {
		return refused
	}
	return nil
}

// project of an agent, of which something is told at a position of the stream. An agent that the directory does not know is a stranger, if it has had the time to tell of it.
func (in *intake) project(ctx context.Context, agentID int64, at uint64) (int64, error) {
	r, known := in.known.reporters[agentID]
	if !known {
		r, known = in.reporters[agentID]
	}
	if known {
		if in.silent && !in.restored && at < r.Since {
			return 0, stranger{agentID}
		}
		return r.ProjectID, nil
	}
	if in.silent {
		return 0, stranger{agentID}
	}
	agent, err := in.find(ctx, agentID)
	if err != nil {
		return 0, err
	}
	in.reporters[agentID] = postgres.Reporter{AgentID: agentID, ProjectID: agent.ProjectID, Since: at}
	return agent.ProjectID, nil
}

// find asks the directory, and gives it some time: whoever waits tries again.
func (i *Ingest) find(ctx context.Context, agentID int64) (directory.Agent, error) {
	enough := time.NewTimer(atATime)
	defer enough.Stop()
	for {
		changed := i.Directory.Changed()
		if agent, known := i.Directory.Agent(agentID); known {
			delete(i.strangers, agentID)
			return agent, nil
		}
		if !i.Directory.Following() {
			delete(i.strangers, agentID)
		} else if since, seen := i.strangers[agentID]; !seen {
			i.strangers[agentID] = time.Now()
		} else if time.Since(since) >= i.Patience {
			return directory.Agent{}, stranger{agentID}
		}
		select {
		case <-changed:
		case <-enough.C:
			return directory.Agent{}, fmt.Errorf("agent %d is not in the directory yet", agentID)
		case <-ctx.Done():
			return directory.Agent{}, fmt.Errorf("agent %d is not in the directory yet: %w", agentID, context.Cause(ctx))
		}
	}
}

// owner is the project whose cluster it is at a position of the stream; 0 for nobody's.
func (in *intake) owner(cluster string, at uint64) int64 {
	for _, v := range slices.Backward(in.claims) {
		if v.ClusterUID == cluster {
			return v.ProjectID
		}
	}
	claims := in.known.claims[cluster]
	for _, claim := range slices.Backward(claims) {
		// What is read again is judged as it was then, where positions are the same as then.
		if !in.silent || in.restored || claim.Since <= at {
			return claim.ProjectID
		}
	}
	return 0
}
