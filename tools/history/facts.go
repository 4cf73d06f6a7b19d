package history

import (
	"encoding/json"
	"fmt"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
)

// Facts checks the public history of rollouts: each message has the fact of its subject, the facts
// of a workload have consecutive sequences, and each rollout starts once and ends at most once, after
// its start.
func Facts(cell topology.Cell, records []Record) Findings {
	var f Findings
	c := factCheck{cell: cell, sequences: map[string]int{}, rollouts: map[string]*rolloutFacts{}}
	for _, r := range records {
		if err := c.check(r); err != nil {
			f.addf("%s, sequence %d, %s: %v", topology.StreamDeploys, r.Sequence, r.Subject, err)
		}
	}
	return f
}

type factCheck struct {
	cell      topology.Cell
	sequences map[string]int // last sequence by workload
	rollouts  map[string]*rolloutFacts
}

type rolloutFacts struct {
	started bool
	ended   events.Fact
}

func (c *factCheck) check(r Record) error {
	fact, err := factOf(r)
	if err != nil {
		return err
	}
	w := fact.Workload
	if want := c.cell.Deploy(w.ClusterUID, w.Namespace, w.Kind, w.Name, string(fact.Fact)); r.Subject != want {
		return fmt.Errorf("fact belongs to subject %s", want)
	}
	key := c.cell.DeployAll(w.ClusterUID, w.Namespace, w.Kind, w.Name)
	if fact.Sequence != c.sequences[key]+1 {
		return fmt.Errorf("has sequence %d after %d", fact.Sequence, c.sequences[key])
	}
	c.sequences[key] = fact.Sequence
	if fact.Rollout == nil {
		return nil
	}
	return c.rollout(fact)
}

func (c *factCheck) rollout(fact events.DeployFact) error {
	published := c.rollouts[fact.Rollout.ID]
	if published == nil {
		published = &rolloutFacts{}
		c.rollouts[fact.Rollout.ID] = published
	}
	switch {
	case fact.Fact == events.FactStarted && published.started:
		return fmt.Errorf("rollout %s starts twice", fact.Rollout.ID)
	case fact.Fact == events.FactStarted:
		published.started = true
	case !published.started:
		return fmt.Errorf("rollout %s has not started", fact.Rollout.ID)
	case terminal(fact.Fact) && published.ended != "":
		return fmt.Errorf("rollout %s is %s already", fact.Rollout.ID, published.ended)
	case terminal(fact.Fact):
		published.ended = fact.Fact
	}
	return nil
}

func terminal(fact events.Fact) bool {
	switch fact {
	case events.FactCompleted, events.FactSuperseded, events.FactCancelled, events.FactRemoved, events.FactUnknown:
		return true
	default:
		return false
	}
}

func factOf(r Record) (events.DeployFact, error) {
	e, err := event.Decode(r.Header, r.Data)
	if err != nil {
		return events.DeployFact{}, fmt.Errorf("is no event: %w", err)
	}
	fact, err := cdevent.Read(e)
	if err != nil {
		return fact, fmt.Errorf("is no fact: %w", err)
	}
	data, err := json.Marshal(fact)
	if err != nil {
		return fact, fmt.Errorf("is no fact: %w", err)
	}
	if err := events.Validate(events.TypeDeployFact, data); err != nil {
		return fact, fmt.Errorf("does not fit its schema: %w", err)
	}
	return fact, nil
}
