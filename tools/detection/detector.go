package detection

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	observed "lockstep.internal/services/deploys/nats"
	"lockstep.internal/services/deploys/rollout"
)

// Detector takes in messages of OBSERVED in their order. It is for one goroutine.
type Detector struct {
	cell  topology.Cell
	rules environment.Rules

	agents       map[int64]*agent
	workloads    map[rollout.Key]*workload
	environments map[environment.Key]*group
	clusters     map[string]struct{}
	facts        []events.DeployFact
	// since and until bound the times of what was observed; zero before the first message.
	since, until time.Time
}

// workload is one, with what it is stored by and the agent that told of it last.
type workload struct {
	id      uuid.UUID
	state   rollout.State
	agentID int64
}

type group struct {
	state   environment.State
	agentID int64
}

// New makes a detector of which nothing is known. The rules are those that the service is configured with.
func New(cell topology.Cell, rules environment.Rules) *Detector {
	return &Detector{
		cell: cell, rules: rules, agents: map[int64]*agent{}, workloads: map[rollout.Key]*workload{}, environments: map[environment.Key]*group{},
		clusters: map[string]struct{}{},
	}
}

// Concerns says whether a message is one that the service reads.
func (d *Detector) Concerns(subject string) bool {
	parsed, err := topology.Parse(subject)
	if err != nil || parsed.Cell != d.cell || parsed.Family != topology.FamilyObserved || len(parsed.Tokens) < 2 {
		return false
	}
	return slices.Contains([]string{topology.TokenWorkload, "tick", "resync", "rejected"}, parsed.Tokens[1])
}

// Take takes in a message and returns what is told because of it. Error: the message is malformed; the service would put it among the dead letters and go on.
func (d *Detector) Take(subject string, header nats.Header, data []byte) ([]events.DeployFact, error) {
	if !d.Concerns(subject) {
		return nil, nil
	}
	o, err := observed.Decode(d.cell, subject, header, data)
	if err != nil {
		return nil, err
	}
	if o.ClusterUID == "" {
		return nil, nil // of no concern
	}
	if d.clusters[o.ClusterUID] = struct{}{}; d.since.IsZero() || o.At.Before(d.since) {
		d.since = o.At
	}
	if o.At.After(d.until) {
		d.until = o.At
	}
	d.facts = nil
	d.take(&o)
	return d.facts, nil
}

// Begin has the stretch that [Detector.Covers] is about begin with the next message; what was taken in before stays known.
func (d *Detector) Begin() { d.since, d.until = time.Time{}, time.Time{} }

// Covers says whether a fact is about what was observed in the messages so far: by its cluster and the time of its observation.
func (d *Detector) Covers(f *events.DeployFact) bool {
	_, known := d.clusters[f.Workload.ClusterUID]
	return known && !f.ObservedAt.Before(d.since) && !f.ObservedAt.After(d.until)
}

func (d *Detector) take(o *observed.Observed) {
	a := d.agents[o.AgentID]
	if a == nil {
		a = &agent{id: o.AgentID, resyncs: map[string]struct{}{}}
		d.agents[o.AgentID] = a
	}
	if o.Begun != nil {
		d.beginResync(a, o)
		return
	}
	if a.cluster == "" {
		a.cluster = o.ClusterUID
	}
	if a.cluster != o.ClusterUID {
		return // of a cluster that the agent is no longer in
	}
	switch {
	case o.Ended != nil:
		d.endResync(a, o)
	case o.Tick:
		d.tick(a, o.At)
	default:
		d.observe(a, o)
	}
}

// input is what an agent's inputs have in common.
func (d *Detector) input(a *agent, at time.Time) rollout.Input {
	input := rollout.Input{AgentID: a.id, ObservedAt: at, Epoch: d.epoch(a)}
	if a.complete != nil && *a.complete == a.selection {
		input.KnownBefore, input.KnownAt = true, a.completeAt
	}
	return input
}

func (d *Detector) observe(a *agent, o *observed.Observed) {
	a.member(o)
	if o.Rejected != nil {
		return
	}
	w := d.workloads[o.Key]
	if w == nil {
		w = &workload{id: o.ID, state: rollout.New(o.Key)}
		d.workloads[o.Key] = w
	}
	input := d.input(a, o.At)
	input.Workload, input.Revision = o.Workload, o.Revision
	d.advance(w, input)
}

func (d *Detector) advance(w *workload, input rollout.Input) {
	before := w.state
	after, facts := rollout.Advance(before, input)
	w.state = after
	if after.Serial != before.Serial {
		if w.agentID = after.AgentID; w.agentID == 0 {
			w.agentID = input.AgentID
		}
	}
	d.facts = append(d.facts, facts...)
	for _, change := range d.rules.Changes(before, after) {
		g := d.environments[change.Key]
		if g == nil {
			g = &group{state: environment.New(change.Key)}
			d.environments[change.Key] = g
		}
		d.advanceGroup(g, change.Input)
	}
}

func (d *Detector) advanceGroup(g *group, input environment.Input) {
	before := g.state.Serial
	after, facts := d.rules.Advance(g.state, input)
	g.state = after
	if g.agentID == 0 || len(facts) > 0 || after.Serial != before {
		g.agentID = input.AgentID
	}
	d.facts = append(d.facts, facts...)
}

// tick takes in the time, for what the agent speaks for.
func (d *Detector) tick(a *agent, at time.Time) {
	if !at.After(a.tickedAt) {
		return
	}
	a.tickedAt = at
	agents := d.speaksFor(a, at)
	concerns := func(cluster string, agentID int64, wake time.Time) bool {
		return !wake.IsZero() && !wake.After(at) && cluster == a.cluster && slices.Contains(agents, agentID)
	}
	var due []*workload
	for key, w := range d.workloads {
		if concerns(key.ClusterUID, w.agentID, w.state.Wake()) {
			due = append(due, w)
		}
	}
	byID(due)
	for _, w := range due {
		d.advance(w, d.input(a, at))
	}
	var groups []*group
	for key, g := range d.environments {
		if concerns(key.ClusterUID, g.agentID, g.state.Wake()) {
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(x, y *group) int {
		return strings.Compare(x.state.Key.String(), y.state.Key.String())
	})
	for _, g := range groups {
		d.advanceGroup(g, environment.Input{AgentID: a.id, ObservedAt: at})
	}
}

// byID puts workloads into the order that the service has them in.
func byID(workloads []*workload) {
	slices.SortFunc(workloads, func(x, y *workload) int { return bytes.Compare(x.id[:], y.id[:]) })
}
