package history

import (
	"encoding/json"
	"fmt"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
)

// Facts checks the public history of rollouts: each message is the fact that its subject says, the
// facts of a workload are numbered without a gap, and each rollout starts once and ends at most
// once, after it started.
func Facts(cell topology.Cell, records []Record) Findings {
	var f Findings
	c := factCheck{cell: cell, numbers: map[string]int{}, rollouts: map[string]*rolloutFacts{}}
	for _, r := range records {
		if err := c.check(r); err != nil {
			f.addf("%s, sequence %d, %s: %v", topology.StreamDeploys, r.Sequence, r.Subject, err)
		}
	}
	return f
}

type factCheck struct {
	cell     topology.Cell
	numbers  map[string]int // last sequence by workload
	rollouts map[string]*rolloutFacts
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
		return fmt.Errorf("is told of %s", want)
	}
	key := c.cell.DeployAll(w.ClusterUID, w.Namespace, w.Kind, w.Name)
	if fact.Sequence != c.numbers[key]+1 {
		return fmt.Errorf("is number %d and follows number %d", fact.Sequence, c.numbers[key])
	}
	c.numbers[key] = fact.Sequence
	if fact.Rollout == nil {
		return nil
	}
	return c.rollout(fact)
}

func (c *factCheck) rollout(fact events.DeployFact) error {
	told := c.rollouts[fact.Rollout.ID]
	if told == nil {
		told = &rolloutFacts{}
		c.rollouts[fact.Rollout.ID] = told
	}
	switch {
	case fact.Fact == events.FactStarted && told.started:
		return fmt.Errorf("rollout %s starts twice", fact.Rollout.ID)
	case fact.Fact == events.FactStarted:
		told.started = true
	case !told.started:
		return fmt.Errorf("rollout %s has not started", fact.Rollout.ID)
	case terminal(fact.Fact) && told.ended != "":
		return fmt.Errorf("rollout %s is %s already", fact.Rollout.ID, told.ended)
	case terminal(fact.Fact):
		told.ended = fact.Fact
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
		return fact, fmt.Errorf("is not what its schema says: %w", err)
	}
	return fact, nil
}
