package rollout_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// fixture simulates the API server, the controllers and a watcher of one workload. It passes the watcher's observations
// to rollout.Advance. It has no goroutines: the test calls each step.
type fixture struct {
	t    testing.TB
	rng  *rand.Rand
	kind string
	now  time.Time
	rv   int
	uids int

	down    bool // the watcher is down
	outages []outage
	held    bool // observations go to the backlog, to be delivered in another order
	backlog []rollout.Input
	log     []rollout.Input // delivered inputs
	agent   int64           // defaults to 7
	state   rollout.State
	facts   []events.DeployFact

	actual []*actualRollout
	// deletions are the times at which workloads were deleted, by UID. seen are the UIDs of those of which a version was
	// observed.
	deletions map[string]time.Time
	seen      map[string]bool
	// lostNumbers has the UIDs of Deployments with a ReplicaSet that was deleted by hand in an outage. Its number may have
	// been reused any number of times: nothing that remains shows how often, and which ReplicaSet had it when.
	lostNumbers map[string]bool
	// deletedByHand has the UIDs of Deployments with a ReplicaSet that was deleted by hand at any time.
	deletedByHand map[string]bool
	workload      simulatedWorkload
	// thorough adds the checks that cost more than the simulation: the form of facts and states.
	thorough bool
}

// outage is a period without a watcher.
type outage struct{ from, until time.Time }

// simulatedWorkload is a workload and its controller.
type simulatedWorkload interface {
	// relist returns all existing objects, the workload first.
	relist() []rollout.Input
	exists() bool
	step()
}

// actualRollout is the simulated rollout of one revision. Its facts must agree with it.
type actualRollout struct {
	id       string
	revision int
	tpl      template
	reused   bool // its object had another number before
	repeated bool // its number is not higher than all before
	written  time.Time
	started  time.Time
	visible  bool      // the workload shows it by its number, pods or condition
	shown    time.Time // since when it is visible
	hidden   bool      // no watcher ran while it was the newest one
	again    bool      // its ReplicaSet was deleted and created again before the watcher observed its end
	numbers  []int     // the numbers of ReplicaSets that were created again for it
	endSeen  bool      // the watcher observed a version of the workload that shows its completion
	seen     bool      // the watcher observed a version of the workload that shows it
	paused   bool      // the workload was paused when it completed
	end      events.Fact
	ended    time.Time
	reported *reportedRollout
}

// observable returns when the start is observed. Only the workload shows that an object without a new number is used
// again.
func (a *actualRollout) observable() time.Time {
	if (a.reused || a.repeated) && a.visible {
		return a.shown
	}
	return a.started
}

var startTime = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

func newFixture(t testing.TB, kind string, seed uint64) *fixture {
	l := &fixture{
		t: t, kind: kind, rng: rand.New(rand.NewPCG(seed, 7)), now: startTime, rv: 100, thorough: true,
		deletions: map[string]time.Time{}, seen: map[string]bool{}, lostNumbers: map[string]bool{},
		deletedByHand: map[string]bool{},
	}
	l.state = rollout.New(rollout.Key{ClusterUID: "cluster", Namespace: "shop", Kind: kind, Name: "web"})
	return l
}

func (l *fixture) uid(prefix string) string {
	l.uids++
	return prefix + strconv.Itoa(l.uids)
}

func (l *fixture) second() time.Time { return l.now.Truncate(time.Second) }

func (l *fixture) meta(name, uid string, created time.Time, verb events.Verb) events.ObjectMeta {
	l.rv++
	return events.ObjectMeta{
		ClusterUID: "cluster", Namespace: "shop", Name: name, UID: uid, ResourceVersion: strconv.Itoa(l.rv), Verb: verb,
		UpdateType: events.UpdateTypePartial, ObservedAt: l.now, CreatedAt: &created,
	}
}

// send observes an object now, unless the watcher is down.
func (l *fixture) send(in rollout.Input) {
	in.AgentID, in.ObservedAt = cmp.Or(l.agent, 7), l.now
	if in.Workload != nil && !l.down {
		l.seen[in.Workload.Object.UID] = true
	}
	switch {
	case l.down:
	case l.held:
		l.backlog = append(l.backlog, in)
	default:
		l.deliver(in)
	}
}

func (l *fixture) deliver(in rollout.Input) {
	l.log = append(l.log, in)
	sampled := l.thorough && len(l.log)%8 == 0
	var before string
	if sampled {
		before = encode(l.t, l.state)
	}
	next, facts := rollout.Advance(l.state, in)
	if sampled {
		require.Equal(l.t, before, encode(l.t, l.state), "Advance changed its input state")
	}
	if len(facts) > 0 {
		require.Greater(l.t, next.Serial, l.state.Serial)
	}
	l.state = next
	for _, f := range facts {
		if l.thorough {
			f = roundTrip(l.t, f)
		}
		require.Equal(l.t, len(l.facts)+1, f.Sequence)
		l.facts = append(l.facts, f)
	}
}

func (l *fixture) tick() {
	l.send(rollout.Input{})
}

// wait advances the time and sends the watcher's ticks.
func (l *fixture) wait(d time.Duration) {
	for ; d > 0; d -= 15 * time.Second {
		l.now = l.now.Add(min(d, 15*time.Second))
		l.tick()
	}
}

// stop stops the watcher. start starts a new one that lists all objects.
func (l *fixture) stop() {
	if !l.down {
		l.outages = append(l.outages, outage{from: l.now})
	}
	l.down = true
}

func (l *fixture) start() {
	l.now = l.now.Add(time.Second) // the restart takes time
	if n := len(l.outages); n > 0 {
		l.outages[n-1].until = l.now
	}
	l.down = false
	if len(l.actual) > 0 && l.deletions[uidOf(l.newest().id)].IsZero() {
		l.newest().hidden = false
	}
	l.resync(true)
}

// resync lists all objects.
func (l *fixture) resync(first bool) {
	members := []rollout.Input{}
	if l.workload.exists() {
		members = l.workload.relist()
	}
	l.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, in := range members {
		in.HasBaseline = true
		if in.Workload != nil {
			in.Workload.Object.FirstSeen, in.Workload.Object.UpdateType = first, events.UpdateTypeFull
			in.Workload.Object.ObservedAt = l.now
		} else {
			in.Revision.Object.FirstSeen, in.Revision.Object.UpdateType = first, events.UpdateTypeFull
			in.Revision.Object.ObservedAt = l.now
		}
		l.send(in)
	}
	if !l.workload.exists() {
		l.send(rollout.Input{Absence: &rollout.Absence{ListVersion: strconv.Itoa(l.rv)}})
	}
}

// run runs the controllers and kubelets until nothing changes.
func (l *fixture) run() {
	for range 200 {
		before := l.rv
		for range 3 {
			l.now = l.now.Add(100 * time.Millisecond)
			l.workload.step()
		}
		if l.rv == before {
			return
		}
	}
	l.t.Fatal("the controllers do not settle")
}

// recordStart records that a controller created or reused a revision.
func (l *fixture) recordStart(start actualRollout) {
	l.recordEnd(events.FactSuperseded)
	start.repeated = slices.ContainsFunc(l.actual, func(a *actualRollout) bool {
		return uidOf(a.id) == uidOf(start.id) && a.revision >= start.revision
	})
	start.started, start.hidden = l.now, l.down
	l.actual = append(l.actual, &start)
}

// recordEnd records the end of the newest rollout, unless it has ended.
func (l *fixture) recordEnd(end events.Fact) {
	if n := len(l.actual); n > 0 && l.newest().end == "" {
		l.newest().end, l.newest().ended = end, l.now
	}
}

// recordDeletion records the deletion of the workload.
func (l *fixture) recordDeletion(uid string) {
	l.recordEnd(events.FactCancelled)
	l.deletions[uid] = l.now
}

// show records that a version of the workload shows the newest rollout.
func (l *fixture) show() {
	if a := l.newest(); !a.visible {
		a.visible, a.shown = true, l.now
	}
	l.newest().seen = l.newest().seen || !l.down
}

func (l *fixture) newest() *actualRollout { return l.actual[len(l.actual)-1] }

// factNames returns the facts as name and revision, without progressed and drained.
func (l *fixture) factNames() []string {
	names := []string{}
	for _, f := range l.facts {
		switch {
		case f.Fact == events.FactProgressed || f.Fact == events.FactDrained:
		case f.Rollout != nil:
			names = append(names, fmt.Sprintf("%s %d", f.Fact, f.Rollout.Revision))
		case f.Scale != nil:
			names = append(names, fmt.Sprintf("%s %d→%d", f.Fact, f.Scale.From, f.Scale.To))
		case f.Gap != nil:
			names = append(names, fmt.Sprintf("%s %v", f.Fact, f.Gap.Revisions))
		default:
			names = append(names, string(f.Fact))
		}
	}
	return names
}

// mark returns the number of facts so far.
func (l *fixture) mark() int { return len(l.factNames()) }

// since returns the facts after the mark.
func (l *fixture) since(mark int) []string { return l.factNames()[mark:] }

// last returns the last fact with a name.
func (l *fixture) last(fact events.Fact) events.DeployFact {
	for _, v := range slices.Backward(l.facts) {
		if v.Fact == fact {
			return v
		}
	}
	l.t.Fatalf("no %s among %v", fact, l.factNames())
	return events.DeployFact{}
}

// equalCounts compares counts without the number of terminating pods' address.
func equalCounts(a, b events.Counts) bool {
	if (a.Terminating == nil) != (b.Terminating == nil) || a.Terminating != nil && *a.Terminating != *b.Terminating {
		return false
	}
	a.Terminating, b.Terminating = nil, nil
	return a == b
}

func encode(t testing.TB, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

// roundTrip returns the fact after encoding, validation and decoding.
func roundTrip(t testing.TB, f events.DeployFact) events.DeployFact {
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, events.Validate(events.TypeDeployFact, raw))
	var back events.DeployFact
	require.NoError(t, json.Unmarshal(raw, &back))
	return back
}
