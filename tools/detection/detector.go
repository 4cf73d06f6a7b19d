package detection

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/observed"
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/services/deploys/roster"
)

// Detector takes in messages of OBSERVED in their order. It is for one goroutine.
type Detector struct {
	decoder *observed.Decoder
	rules   environment.Rules

	roster *roster.Roster
	// claims of clusters; project tells whose an agent is of which they do not know.
	claims  *roster.Claims
	project func(agentID int64) (int64, bool)
	// resyncs that have begun, and of those that are open what has come, by agent.
	resyncs map[resync]struct{}
	open    map[int64]*members

	workloads    map[uuid.UUID]*workload
	environments map[uuid.UUID]*group
	clusters     map[string]struct{}
	facts        []events.DeployFact
	// since and until bound the times of what was observed; zero before the first message.
	since, until time.Time
}

// resync is a full resync of an agent.
type resync struct {
	agentID int64
	id      string
}

// members are what came in a full resync: objects, and which workloads are among them.
type members struct {
	objects   map[string]struct{}
	workloads map[uuid.UUID]struct{}
}

// workload is one, with the agent that told of it last.
type workload struct {
	id      uuid.UUID
	state   rollout.State
	agentID int64
}

type group struct {
	id      uuid.UUID
	state   environment.State
	agentID int64
}

// New makes a detector of which nothing is known. The rules are those that the service is
// configured with. All agents are of one project, unless [Detector.Decided] or [Detector.Decide]
// says otherwise.
func New(cell topology.Cell, rules environment.Rules) *Detector {
	return &Detector{
		decoder: observed.NewDecoder(
			cell,
		),
		rules:        rules,
		roster:       roster.New(nil),
		resyncs:      map[resync]struct{}{},
		open:         map[int64]*members{},
		workloads:    map[uuid.UUID]*workload{},
		environments: map[uuid.UUID]*group{},
		clusters:     map[string]struct{}{},
		claims:       roster.NewClaims(roster.Onwards, map[int64]roster.Reporter{}, map[string][]roster.Claim{}),
		project:      func(int64) (int64, bool) { return 1, true },
	}
}

// Stranger says that an agent is not known to be of any project: the service would put what it
// tells among the dead letters.
type Stranger struct{ AgentID int64 } //nolint:errname // a word of its own, as the service says it

func (s Stranger) Error() string {
	return fmt.Sprintf("agent %d is of no project that is known", s.AgentID)
}

// Decided has it go by what the service has decided of whose clusters are: by the position of each
// message, or where the stream was restored from an older copy meanwhile, by what was decided last.
// It is called before the first message.
func (d *Detector) Decided(restored bool, reporters []roster.Reporter, claims []roster.Claim) {
	reading := roster.Again
	if restored {
		reading = roster.Restored
	}
	byAgent, byCluster := map[int64]roster.Reporter{}, map[string][]roster.Claim{}
	for _, r := range reporters {
		byAgent[r.AgentID] = r
	}
	for _, c := range claims {
		byCluster[c.ClusterUID] = append(byCluster[c.ClusterUID], c)
	}
	d.claims = roster.NewClaims(reading, byAgent, byCluster)
	d.project = func(int64) (int64, bool) { return 0, false }
}

// Decide has it find out itself whose clusters are, as the service does when it reads the stream
// first: project tells whose agents are. Where the stream has dropped its first messages, that may
// differ. It is called before the first message.
func (d *Detector) Decide(project func(agentID int64) (int64, bool)) { d.project = project }

// Concerns says whether a message is one that the service reads.
func (d *Detector) Concerns(subject string) bool { return d.decoder.Concerns(subject) }

// Take takes in the message at a position of the stream and returns what is told because of it.
// Error: the message is malformed, or, a [*roster.Foreign] or a [Stranger], refused; the service
// would put it among the dead letters and go on.
func (d *Detector) Take(sequence uint64, subject string, header nats.Header, data []byte) ([]events.DeployFact, error) {
	o, err := d.decoder.Decode(subject, header, data)
	if err != nil {
		return nil, err
	}
	return d.detect(&o, sequence)
}

// detect takes in what a message says.
func (d *Detector) detect(o *observed.Observed, sequence uint64) ([]events.DeployFact, error) {
	if o.ClusterUID == "" {
		return nil, nil // of no concern
	}
	if admitted, err := d.admit(o, sequence); !admitted {
		return nil, err
	}
	if d.clusters[o.ClusterUID] = struct{}{}; d.since.IsZero() || o.At.Before(d.since) {
		d.since = o.At
	}
	if o.At.After(d.until) {
		d.until = o.At
	}
	d.facts = nil
	d.take(o)
	return d.facts, nil
}

// admit says whether a message counts; its error is that it is refused.
func (d *Detector) admit(o *observed.Observed, sequence uint64) (bool, error) {
	if o.Released != nil {
		released := d.claims.Release(o, sequence)
		d.claims.Keep()
		return released, nil
	}
	project, known := d.claims.Project(o.AgentID, sequence)
	if !known {
		if project, known = d.project(o.AgentID); !known {
			return false, Stranger{o.AgentID}
		}
		d.claims.Report(o.AgentID, project, sequence)
	}
	err := d.claims.Admit(o, sequence, project, d.roster.Agent(o.AgentID).ClusterUID)
	d.claims.Keep()
	if foreign, is := errors.AsType[*roster.Foreign](err); is && foreign.Clock {
		return false, nil
	}
	return err == nil, err
}

// Begin has the stretch that [Detector.Covers] is about begin with the next message; what was taken
// in before stays known.
func (d *Detector) Begin() { d.since, d.until = time.Time{}, time.Time{} }

// Covers says whether a fact is about what was observed in the messages so far: by its cluster and
// the time of its observation.
func (d *Detector) Covers(f *events.DeployFact) bool {
	_, known := d.clusters[f.Workload.ClusterUID]
	return known && !f.ObservedAt.Before(d.since) && !f.ObservedAt.After(d.until)
}

func (d *Detector) take(o *observed.Observed) {
	if o.Begun != nil {
		d.beginResync(o)
		return
	}
	if o.Released != nil {
		d.release(o)
		return
	}
	a, ours := d.roster.Hear(o)
	switch {
	case !ours:
	case o.Ended != nil:
		d.endResync(o)
	case o.Tick:
		d.tick(a, o.At)
	default:
		d.observe(a, o)
	}
}

// beginResync takes in the begin of a full resync. One that has begun before says nothing new.
func (d *Detector) beginResync(o *observed.Observed) {
	id := resync{o.AgentID, o.Begun.ResyncID}
	if _, known := d.resyncs[id]; known {
		return
	}
	d.resyncs[id] = struct{}{}
	d.open[o.AgentID] = &members{objects: map[string]struct{}{}, workloads: map[uuid.UUID]struct{}{}}
	d.roster.Begin(o)
}

// release lets go of everything in a cluster that is another project's from here on.
func (d *Detector) release(o *observed.Observed) {
	d.roster.Release(o.ClusterUID)
	var all []*workload
	for _, w := range d.workloads {
		if w.state.Key.ClusterUID == o.ClusterUID {
			all = append(all, w)
		}
	}
	inOrder(all)
	for _, w := range all {
		d.advance(w, rollout.Input{AgentID: w.agentID, ObservedAt: o.At, Released: true})
	}
}

// endResync takes in the end of a full resync, and what is absent by it.
func (d *Detector) endResync(o *observed.Observed) {
	a, open := d.roster.End(o)
	if !open {
		return
	}
	came := d.open[a.ID]
	delete(d.open, a.ID)
	if !a.Whole(o, int64(len(came.objects))) {
		return // nothing is judged by it
	}
	word := d.roster.SpeaksFor(a, o.At)
	var absent []*workload
	for id, w := range d.workloads {
		if _, there := came.workloads[id]; !there && word.Concerns(w.state.Key.ClusterUID, w.agentID) &&
			w.state.Present() {
			absent = append(absent, w)
		}
	}
	inOrder(absent)
	for _, w := range absent {
		if absence := a.Absence(w.state.Key.Kind); absence != nil {
			input := d.roster.Input(a, o.At)
			input.AgentID, input.Absence = w.agentID, absence
			d.advance(w, input)
		}
	}
	d.roster.Complete(a)
}

func (d *Detector) observe(a *roster.Agent, o *observed.Observed) {
	if came := d.open[a.ID]; came != nil && a.Member(o) {
		came.objects[o.Member()] = struct{}{}
		if o.Revision == nil {
			came.workloads[o.ID] = struct{}{}
		}
	}
	if o.Rejected != nil {
		return
	}
	w := d.workloads[o.ID]
	if w == nil {
		w = &workload{id: o.ID, state: rollout.New(o.Key)}
		d.workloads[o.ID] = w
	}
	input := d.roster.Input(a, o.At)
	input.Workload, input.Revision = o.Workload, o.Revision
	d.advance(w, input)
}

func (d *Detector) advance(w *workload, input rollout.Input) {
	before := w.state
	after, facts := rollout.Advance(before, input)
	if after.Serial == before.Serial {
		return
	}
	w.state, w.agentID = after, roster.Teller(after.AgentID, input.AgentID)
	d.told(facts)
	for _, change := range d.rules.Changes(before, after) {
		id := observed.Identify(change.Key.ClusterUID, change.Key.Namespace, environment.Kind, change.Key.Name)
		g := d.environments[id]
		if g == nil {
			g = &group{id: id, state: environment.New(change.Key)}
			d.environments[id] = g
		}
		d.advanceGroup(g, change.Input)
	}
}

func (d *Detector) advanceGroup(g *group, input environment.Input) {
	before := g.state.Serial
	after, facts := d.rules.Advance(g.state, input)
	if g.state = after; after.Serial != before {
		g.agentID = roster.Teller(after.AgentID, input.AgentID)
	}
	d.told(facts)
}

func (d *Detector) told(facts []events.DeployFact) {
	if d.facts == nil {
		d.facts = facts // which is all, for most messages
		return
	}
	d.facts = append(d.facts, facts...)
}

// tick takes in the time, for what the agent speaks for.
func (d *Detector) tick(a *roster.Agent, at time.Time) {
	word, goes := d.roster.Tick(a, at)
	if !goes {
		return
	}
	var due []*workload
	for _, w := range d.workloads {
		if word.Wakes(w.state.Key.ClusterUID, w.agentID, w.state.Wake()) {
			due = append(due, w)
		}
	}
	inOrder(due)
	for _, w := range due {
		d.advance(w, d.roster.Input(a, at))
	}
	var groups []*group
	for _, g := range d.environments {
		if word.Wakes(g.state.Key.ClusterUID, g.agentID, g.state.Wake()) {
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(x, y *group) int { return bytes.Compare(x.id[:], y.id[:]) })
	for _, g := range groups {
		d.advanceGroup(g, environment.Input{AgentID: a.ID, ObservedAt: at})
	}
}

// inOrder puts workloads into the order that the service has them in.
func inOrder(workloads []*workload) {
	slices.SortFunc(workloads, func(x, y *workload) int { return bytes.Compare(x.id[:], y.id[:]) })
}
