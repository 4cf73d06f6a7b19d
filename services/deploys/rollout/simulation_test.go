package rollout_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// cluster simulates random actions on a workload of any kind.
type cluster struct {
	*fixture

	actions []func()
}

func clusterOf(t testing.TB, kind string, seed uint64) *cluster {
	switch kind {
	case rollout.Deployment:
		d := newDeployment(t, seed)
		d.keep = 1 + int(seed%3)*5
		if seed%5 == 0 {
			d.strategy = "Recreate"
		}
		return &cluster{fixture: d.fixture, actions: []func(){
			func() { d.edit("web:" + strconv.Itoa(d.rng.IntN(6))) },
			func() { d.edit("web:" + strconv.Itoa(d.rng.IntN(6))) },
			func() { d.setEnv(strconv.Itoa(d.rng.IntN(3))) },
			d.restart,
			func() { d.scale(d.rng.IntN(5)) },
			func() { d.paused = !d.paused; d.spec(func() {}) },
			func() { d.undo(d.sets[d.rng.IntN(len(d.sets))].revision) },
			d.deleteSet,
			func() { d.slow = !d.slow },
			func() { d.late = true },
			func() { d.quota = !d.quota },
			d.delete,
		}}
	case rollout.StatefulSet:
		s := newStatefulSet(t, seed)
		return &cluster{fixture: s.fixture, actions: []func(){
			func() { s.edit("web:" + strconv.Itoa(s.rng.IntN(4))) },
			func() { s.edit("web:" + strconv.Itoa(s.rng.IntN(4))) },
			s.restart,
			func() { s.scale(s.rng.IntN(5)) },
			func() { s.setPartition(s.rng.IntN(4)) },
			func() { s.setPartition(0) },
			func() { s.slow = !s.slow },
			s.delete,
		}}
	default:
		d := newDaemonSet(t, seed)
		return &cluster{fixture: d.fixture, actions: []func(){
			func() { d.edit("web:" + strconv.Itoa(d.rng.IntN(4))) },
			func() { d.edit("web:" + strconv.Itoa(d.rng.IntN(4))) },
			d.restart,
			d.addNode,
			func() {
				if len(d.nodes) > 1 {
					d.loseNode()
				}
			},
			func() { d.slow = !d.slow },
			d.delete,
		}}
	}
}

func (c *cluster) ensureExists() {
	if c.workload.exists() {
		return
	}
	c.now = c.now.Add(time.Second)
	switch p := c.workload.(type) {
	case *deployment:
		p.create(c.rng.IntN(4), "web:0")
	case *statefulSet:
		p.create(c.rng.IntN(4), "web:0")
	case *daemonSet:
		p.create(1+c.rng.IntN(3), "web:0")
	}
}

// randomStep runs a random action, then some steps of the controllers.
func (c *cluster) randomStep() {
	c.ensureExists()
	if d, ok := c.workload.(*deployment); !ok || len(d.sets) > 0 {
		c.actions[c.rng.IntN(len(c.actions))]()
	}
	for range c.rng.IntN(12) {
		c.now = c.now.Add(time.Duration(c.rng.IntN(900)) * time.Millisecond)
		c.workload.step()
	}
}

// completeAll removes everything that delays a rollout, and runs the controllers until it is complete.
func (c *cluster) completeAll() {
	c.ensureExists()
	switch p := c.workload.(type) {
	case *deployment:
		p.slow, p.quota, p.late = false, false, false
		if p.paused {
			p.resume()
		}
	case *statefulSet:
		p.slow = false
		p.setPartition(0)
	case *daemonSet:
		p.slow = false
	}
	c.run()
}

// deliverBacklog delivers the backlog: versions of one object in order, objects in any order, some of them repeatedly.
func (c *cluster) deliverBacklog() {
	queues := map[string][]rollout.Input{}
	names := []string{}
	for _, in := range c.backlog {
		name := objectOf(in)
		if _, ok := queues[name]; !ok {
			names = append(names, name)
		}
		queues[name] = append(queues[name], in)
	}
	c.backlog = nil
	for len(names) > 0 {
		i := c.rng.IntN(len(names))
		for n := 1 + c.rng.IntN(8); n > 0 && len(queues[names[i]]) > 0; n-- {
			c.deliver(queues[names[i]][0])
			queues[names[i]] = queues[names[i]][1:]
			if c.rng.IntN(6) == 0 {
				c.deliver(c.log[c.rng.IntN(len(c.log))])
			}
		}
		if len(queues[names[i]]) == 0 {
			names = slices.Delete(names, i, i+1)
		}
	}
}

// tickNow lets the time pass after which views no longer wait. Everything has been delivered before.
func (c *cluster) tickNow() {
	c.held = false
	c.wait(time.Minute)
	c.held = true
}

func objectOf(in rollout.Input) string {
	switch {
	case in.Workload != nil:
		return "workload"
	case in.Revision != nil:
		return in.Revision.Object.Name
	default:
		return "tick"
	}
}

// rolloutFacts are the facts of one rollout.
type rolloutFacts struct {
	facts    []events.Fact
	revision int
}

// factsByRollout returns the facts of all rollouts by id. It checks that the first fact is the only started, and that
// at most drained follows the terminal fact.
func (c *cluster) factsByRollout() map[string]*rolloutFacts {
	rollouts := map[string]*rolloutFacts{}
	ids := map[string]bool{}
	for _, f := range c.facts {
		id := rollout.ID(f)
		require.False(c.t, ids[id], "published twice: %s %d", f.Fact, f.Sequence)
		ids[id] = true
		if f.Rollout == nil {
			continue
		}
		s := rollouts[f.Rollout.ID]
		if s == nil {
			s = &rolloutFacts{revision: f.Rollout.Revision}
			rollouts[f.Rollout.ID] = s
			require.Equal(c.t, events.FactStarted, f.Fact, "the first fact of %s", f.Rollout.ID)
		} else {
			require.NotEqual(c.t, events.FactStarted, f.Fact, "%s started twice", f.Rollout.ID)
		}
		if s.end() != "" {
			require.Equal(c.t, events.FactDrained, f.Fact, "a fact of %s after its end", f.Rollout.ID)
			require.Equal(c.t, events.FactCompleted, s.end())
		}
		s.facts = append(s.facts, f.Fact)
	}
	return rollouts
}

func (s *rolloutFacts) end() events.Fact {
	for _, f := range s.facts {
		switch f {
		case events.FactCompleted, events.FactSuperseded, events.FactCancelled, events.FactUnknown:
			return f
		default:
		}
	}
	return ""
}

func kinds() []string { return []string{rollout.Deployment, rollout.StatefulSet, rollout.DaemonSet} }

// The observations of different objects arrive in any order. The facts agree with the simulated rollouts.
func TestEachRolloutIsReportedOnce(t *testing.T) {
	t.Parallel()
	runHistories(t, checkReordered)
}

// FuzzReordered checks the same for any seed.
func FuzzReordered(f *testing.F) {
	for kind := range kinds() {
		f.Add(uint64(seeds), byte(kind))
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind byte) { checkReordered(t, kinds()[int(kind)%3], seed) })
}

// checkReordered simulates random actions on successive objects with one name. The watcher is always running, and its
// observations are reordered.
func checkReordered(t testing.TB, kind string, seed uint64) {
	c := clusterOf(t, kind, seed)
	c.thorough = isThorough(seed)
	c.held = true
	for range 25 {
		c.randomStep()
		if c.rng.IntN(3) == 0 {
			c.deliverBacklog()
		}
		if c.rng.IntN(4) == 0 {
			c.deliverBacklog()
			c.tickNow()
			c.resync(c.rng.IntN(2) == 0)
		}
	}
	c.completeAll()
	c.deliverBacklog()
	c.wait(time.Minute)
	c.deliverBacklog()
	rollouts := c.factsByRollout()
	for _, actual := range c.actual {
		s := rollouts[actual.id]
		if !actual.visible && s == nil {
			continue // no version of the workload showed it
		}
		require.NotNil(t, s, "no facts about %s: %v", actual.id, c.factNames())
		if next := c.next(actual); next == nil || next.visible || rollouts[next.id] != nil {
			require.Equal(t, actual.end, s.end(), "%s: %v %v", actual.id, c.factNames(), c.describeActual())
		}
		delete(rollouts, actual.id)
	}
	require.Empty(t, rollouts, "rollouts that did not happen: %v", c.factNames())
	require.NotContains(t, c.factNames(), "gap")
	c.checkReplay()
}

// checkReplay checks that equal inputs give equal facts, byte for byte, also if the state is stored as JSON in between.
func (c *cluster) checkReplay() {
	if !c.thorough {
		return
	}
	s := rollout.New(c.state.Key)
	var facts []events.DeployFact
	for _, in := range c.log {
		var more []events.DeployFact
		s, more = rollout.Advance(s, in)
		facts = append(facts, more...)
		raw := encode(c.t, s)
		require.Less(c.t, len(raw), 100_000)
		var back rollout.State
		require.NoError(c.t, json.Unmarshal([]byte(raw), &back))
		require.Equal(c.t, raw, encode(c.t, back))
		s = back
		if c.rng.IntN(5) == 0 { // repeat the input
			_, repeated := rollout.Advance(s, in)
			require.Empty(c.t, repeated)
		}
	}
	require.Equal(c.t, encode(c.t, c.facts), encode(c.t, facts))
	require.Equal(c.t, encode(c.t, c.state), encode(c.t, s))
}

// While the watcher is down, rollouts or their ends may be missed. A gap reports them. The other facts agree with the
// simulated rollouts.
func TestUnobservedRevisionsAreReportedInGap(t *testing.T) {
	t.Parallel()
	runHistories(t, checkOutages)
}

// FuzzOutages checks the same for any seed.
func FuzzOutages(f *testing.F) {
	for kind := range kinds() {
		f.Add(uint64(seeds), byte(kind))
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind byte) { checkOutages(t, kinds()[int(kind)%3], seed) })
}

// checkOutages simulates random actions with outages of the watcher.
func checkOutages(t testing.TB, kind string, seed uint64) {
	c := clusterOf(t, kind, 1000+seed)
	c.thorough = isThorough(seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	for range 25 {
		if rng.IntN(4) == 0 {
			c.stop()
		}
		c.randomStep()
		c.tick()
		if c.down && rng.IntN(2) == 0 {
			c.start()
			c.wait(time.Duration(rng.IntN(3)) * 30 * time.Second)
		}
	}
	if c.down {
		c.start()
	}
	c.wait(time.Minute)
	c.completeAll()
	c.wait(time.Minute)
	rollouts, lost := c.factsByRollout(), c.lostRevisions()
	for _, actual := range c.actual {
		if c.unobservedDeletion[uidOf(actual.id)] {
			continue
		}
		inGap := lost[uidOf(actual.id)+"/"+strconv.Itoa(actual.revision)]
		s := rollouts[actual.id]
		if s == nil && c.renumbered[uidOf(actual.id)] {
			for id, candidate := range rollouts {
				if templateOf(id) == templateOf(actual.id) && candidate.revision == actual.revision {
					s = candidate
				}
			}
		}
		if s == nil {
			if actual.visible && !actual.unobservable && !c.isUnobservable(actual) {
				require.True(t, inGap, "no facts about %s: %v", actual.id, c.factNames())
			}
			continue
		}
		delete(rollouts, actual.id)
		if next := c.next(actual); next != nil && !next.visible && rollouts[next.id] == nil {
			continue // the next one was undone before a version of the workload showed it
		}
		switch end := s.end(); end {
		case events.FactUnknown:
			require.True(t, inGap, "%s: %v", actual.id, c.factNames())
		case events.FactSuperseded, events.FactCancelled: // depends on what completed before, maybe unobserved
			require.Contains(t, []events.Fact{events.FactSuperseded, events.FactCancelled}, actual.end, "%s: %v %v", actual.id,
				c.factNames(), c.describeActual())
		default:
			require.Equal(t, actual.end, end, "%s: %v %v", actual.id, c.factNames(), c.describeActual())
		}
	}
	for id := range rollouts {
		known := slices.ContainsFunc(c.actual, func(actual *actualRollout) bool {
			return (c.unobservedDeletion[uidOf(id)] || c.renumbered[uidOf(id)]) && templateOf(actual.id) == templateOf(id)
		})
		require.True(t, known, "rollout that did not happen: %s: %v", id, c.factNames())
	}
	require.Empty(t, c.state.Waiting)
	c.checkReplay()
}

// lostRevisions returns the revisions in gaps, as <UID>/<revision>. It checks that each gap overlaps an outage.
func (c *cluster) lostRevisions() map[string]bool {
	lost := map[string]bool{}
	for _, f := range c.facts {
		if f.Gap == nil {
			continue
		}
		require.True(c.t, slices.ContainsFunc(c.outages, func(o outage) bool {
			return f.Gap.Since.Before(o.until) && f.Gap.Until.After(o.from)
		}), "%s %v since %s until %s: %v", f.Fact, f.Gap.Revisions, f.Gap.Since, f.Gap.Until, c.outages)
		if f.Fact == events.FactGap {
			for _, revision := range f.Gap.Revisions {
				lost[f.Workload.UID+"/"+strconv.Itoa(revision)] = true
			}
		}
	}
	return lost
}

// next returns the next rollout of the same object.
func (c *cluster) next(actual *actualRollout) *actualRollout {
	if i := slices.Index(c.actual, actual) + 1; i < len(c.actual) && uidOf(c.actual[i].id) == uidOf(actual.id) {
		return c.actual[i]
	}
	return nil
}

// isUnobservable reports whether no observation could show the rollout: no version of its object was observed, or its
// object was deleted in the same outage. A gap then covers its start, and the removal of the object follows.
func (c *cluster) isUnobservable(actual *actualRollout) bool {
	uid, covered := uidOf(actual.id), false
	for _, f := range c.facts {
		if f.Workload.UID != uid {
			continue
		}
		if f.Fact == events.FactGap && !f.Gap.Since.After(actual.started) && !f.Gap.Until.Before(actual.started) {
			covered = true
		}
		if covered && f.Fact == events.FactRemoved {
			return true
		}
	}
	return !c.hasFacts(uid)
}

func (c *cluster) describeActual() []string {
	all := []string{}
	for _, actual := range c.actual {
		all = append(all, fmt.Sprintf("%s %v %s", actual.id, actual.visible, actual.end))
	}
	return all
}

// hasFacts reports whether an object has facts. An object that existed only within an outage has none.
func (c *cluster) hasFacts(uid string) bool {
	return slices.ContainsFunc(c.facts, func(f events.DeployFact) bool { return f.Workload.UID == uid })
}

func uidOf(id string) string { return strings.Split(id, "/")[1] }

// templateOf returns a Deployment's rollout id without revision numbers. The numbers differ if a ReplicaSet was
// recreated unobserved.
func templateOf(id string) string {
	parts := strings.Split(id, "/")
	return parts[1] + "/" + parts[3]
}
