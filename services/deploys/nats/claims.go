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
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/services/deploys/roster"
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
	if _, known := i.known.reporters[o.AgentID]; !known && o.AgentID != 0 && !slices.Contains(ask.Reporters, o.AgentID) {
		ask.Reporters = append(ask.Reporters, o.AgentID)
	}
	if _, known := i.known.claims[o.ClusterUID]; !known && !slices.Contains(ask.Claims, o.ClusterUID) {
		ask.Claims = append(ask.Claims, o.ClusterUID)
	}
}

// reading is what positions mean to claims.
func (i *Ingest) reading() roster.Reading {
	switch {
	case !i.silent:
		return roster.Onwards
	case i.restored:
		return roster.Restored
	default:
		return roster.Again
	}
}

// admit refuses what agents say of the clusters of other projects. What is refused is named whole, so that the batch is tried once more only; it is judged from
// the beginning then, and so changed only when all of it is let in.
func (in *intake) admit(ctx context.Context, batch []cursor.Message[Observed]) error {
	var refused cursor.DeadLetterErrors
	var void []*Observed
	clusters := map[int64]string{}
	for m := range batch {
		o := &batch[m].Value
		switch {
		case o.ClusterUID == "":
			continue
		case o.Released != nil:
			if !in.claims.Release(o, batch[m].Sequence) {
				in.Logger.InfoContext(ctx, "a release of a cluster says nothing: the cluster was released before", "cluster_uid", o.ClusterUID, "sequence", batch[m].Sequence)
				void = append(void, o)
			}
			continue
		}
		err := in.admitOne(ctx, &batch[m], clusters)
		foreign, is := errors.AsType[*roster.Foreign](err)
		if is {
			in.Metrics.foreign()
		}
		_, unknown := errors.AsType[stranger](err)
		switch {
		case err == nil:
		case is && foreign.Clock:
			void = append(void, o)
		case is || unknown:
			refused = append(refused, &cursor.DeadLetterError{Sequence: batch[m].Sequence, Err: err})
		default:
			return err
		}
	}
	if len(refused) > 0 {
		return refused
	}
	for _, o := range void {
		*o = Observed{}
	}
	return nil
}

// admitOne message; clusters are those that agents of the batch are in by it.
func (in *intake) admitOne(ctx context.Context, m *cursor.Message[Observed], clusters map[int64]string) error {
	o := &m.Value
	project, err := in.project(ctx, o.AgentID, m.Sequence)
	if err != nil {
		return err
	}
	at, moved := clusters[o.AgentID]
	if !moved {
		at = in.roster.Agent(o.AgentID).ClusterUID
	}
	if err := in.claims.Admit(o, m.Sequence, project, at); err != nil {
		return err
	}
	if at == "" || o.Begun != nil {
		clusters[o.AgentID] = o.ClusterUID
	}
	return nil
}

// project of an agent, of which something is told at a position of the stream. An agent that the directory does not know is a stranger, if it has had the time to tell of it.
func (in *intake) project(ctx context.Context, agentID int64, at uint64) (int64, error) {
	if project, known := in.claims.Project(agentID, at); known {
		return project, nil
	}
	if in.silent {
		return 0, stranger{agentID}
	}
	agent, err := in.find(ctx, agentID)
	if err != nil {
		return 0, err
	}
	in.claims.Report(agentID, agent.ProjectID, at)
	return agent.ProjectID, nil
}

// release lets go of everything in a cluster that is another project's from here on.
func (in *intake) release(ctx context.Context, o *Observed) error {
	in.roster.Release(o.ClusterUID)
	stored, err := in.Store.Within(ctx, in.tx, o.ClusterUID)
	if err != nil {
		return err
	}
	if err := load(stored, in.loaded); err != nil {
		return err
	}
	for id, read := range in.loaded {
		if read.state.Key.ClusterUID == o.ClusterUID {
			in.workload(id, read.state.Key)
		}
	}
	var concerned []*workload
	for _, w := range in.order {
		if w.key.ClusterUID == o.ClusterUID {
			concerned = append(concerned, w)
		}
	}
	slices.SortFunc(concerned, func(a, b *workload) int { return slices.Compare(a.id[:], b.id[:]) })
	followed, ended := 0, 0
	for _, w := range concerned {
		if w.state.Present() {
			followed++
		}
		if w.state.InFlight() {
			ended++
		}
		in.advance(w, rollout.Input{AgentID: w.agentID, ObservedAt: o.At, Released: true})
	}
	in.Metrics.release()
	in.Logger.InfoContext(ctx, "a cluster was released", "cluster_uid", o.ClusterUID, "project", o.Released.ProjectID, "to_project", o.Released.ToProjectID,
		"user", o.Released.UserID, "reason", o.Released.Reason, "workloads", followed, "rollouts_ended", ended)
	return nil
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
