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

// cluster simulates random events of a workload of any kind.
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
			func() { s.partition(s.rng.IntN(4)) },
			func() { s.partition(0) },
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

func (c *cluster) ensure() {
	if c.plays.exists() {
		return
	}
	c.now = c.now.Add(time.Second)
	switch p := c.plays.(type) {
	case *deployment:
		p.create(c.rng.IntN(4), "web:0")
	case *statefulSet:
		p.create(c.rng.IntN(4), "web:0")
	case *daemonSet:
		p.create(1+c.rng.IntN(3), "web:0")
	}
}

// act does something random and lets the controllers work for a while.
func (c *cluster) act() {
	c.ensure()
	if d, ok := c.plays.(*deployment); !ok || len(d.sets) > 0 {
		c.actions[c.rng.IntN(len(c.actions))]()
	}
	for range c.rng.IntN(12) {
		c.now = c.now.Add(time.Duration(c.rng.IntN(900)) * time.Millisecond)
		c.plays.step()
	}
}

// calm lets everything complete.
func (c *cluster) calm() {
	c.ensure()
	switch p := c.plays.(type) {
	case *deployment:
		p.slow, p.quota, p.late = false, false, false
		if p.paused {
			p.resume()
		}
	case *statefulSet:
		p.slow = false
		p.partition(0)
	case *daemonSet:
		p.slow = false
	}
	c.run()
}

// release delivers the held observations: versions of one object in order, objects in any order, some repeatedly.
func (c *cluster) release() {
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

// story has the facts of one rollout.
type story struct {
	facts    []events.Fact
	revision int
}

// stories returns those of all rollouts, and checks that each has one start, first, and at most one end, followed by
// drained only.
func (c *cluster) stories() map[string]*story {
	stories := map[string]*story{}
	ids := map[string]bool{}
	for _, f := range c.facts {
		id := rollout.ID(f)
		require.False(c.t, ids[id], "published twice: %s %d", f.Fact, f.Sequence)
		ids[id] = true
		if f.Rollout == nil {
			continue
		}
		s := stories[f.Rollout.ID]
		if s == nil {
			s = &story{revision: f.Rollout.Revision}
			stories[f.Rollout.ID] = s
			require.Equal(c.t, events.FactStarted, f.Fact, "%s does not begin with its start", f.Rollout.ID)
		} else {
			require.NotEqual(c.t, events.FactStarted, f.Fact, "%s starts twice", f.Rollout.ID)
		}
		if s.end() != "" {
			require.Equal(c.t, events.FactDrained, f.Fact, "%s goes on after its end", f.Rollout.ID)
			require.Equal(c.t, events.FactCompleted, s.end())
		}
		s.facts = append(s.facts, f.Fact)
	}
	return stories
}

func (s *story) end() events.Fact {
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

// For any events and any order of objects, each rollout is reported as it happened, and no other.
func TestEveryRolloutIsReportedOnceAsItHappened(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds() {
		for seed := range uint64(runs) {
			t.Run(fmt.Sprintf("%s/%d", kind, seed), func(t *testing.T) {
				t.Parallel()
				histories(t, kind, seed)
			})
		}
	}
}

// FuzzHistories checks the same for any seed.
func FuzzHistories(f *testing.F) {
	for kind := range kinds() {
		f.Add(uint64(runs), byte(kind))
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind byte) { histories(t, kinds()[int(kind)%3], seed) })
}

// histories plays random histories of successive objects of one name, with a watcher that is always up.
func histories(t *testing.T, kind string, seed uint64) {
	c := clusterOf(t, kind, seed)
	c.held = true
	for range 25 {
		c.act()
		if c.rng.IntN(3) == 0 {
			c.release()
		}
		if c.rng.IntN(4) == 0 {
			c.release()
			c.resync(c.rng.IntN(2) == 0)
		}
	}
	c.calm()
	c.release()
	c.wait(time.Minute)
	c.release()
	stories := c.stories()
	for _, actual := range c.truth {
		s := stories[actual.id]
		if !actual.known && s == nil {
			continue // the workload never showed it
		}
		require.NotNil(t, s, "no facts about %s: %v", actual.id, c.factNames())
		if next := c.after(actual); next == nil || next.known || stories[next.id] != nil {
			require.Equal(t, actual.end, s.end(), "%s: %v %v", actual.id, c.factNames(), c.truths())
		}
		delete(stories, actual.id)
	}
	require.Empty(t, stories, "invented: %v", c.factNames())
	require.NotContains(t, c.factNames(), "gap")
	c.replay()
}

// replay checks that equal inputs give equal facts, byte for byte, also if states go through JSON.
func (c *cluster) replay() {
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

// runs per kind, with fixed seeds.
const runs = 25

// While the watcher is down, rollouts or their ends may be lost: a gap names them. All facts are true.
func TestUnobservedRevisionsAreNamedInGap(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds() {
		for seed := range uint64(runs) {
			t.Run(fmt.Sprintf("%s/%d", kind, seed), func(t *testing.T) {
				t.Parallel()
				outages(t, kind, seed)
			})
		}
	}
}

// FuzzOutages checks the same for any seed.
func FuzzOutages(f *testing.F) {
	for kind := range kinds() {
		f.Add(uint64(runs), byte(kind))
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind byte) { outages(t, kinds()[int(kind)%3], seed) })
}

// outages plays random histories with outages of the watcher.
func outages(t *testing.T, kind string, seed uint64) {
	c := clusterOf(t, kind, 1000+seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	for range 25 {
		if rng.IntN(4) == 0 {
			c.stop()
		}
		c.act()
		if c.down && rng.IntN(2) == 0 {
			c.start()
			c.wait(time.Duration(rng.IntN(3)) * 30 * time.Second)
		}
	}
	if c.down {
		c.start()
	}
	c.wait(time.Minute)
	c.calm()
	c.wait(time.Minute)
	stories, lost := c.stories(), c.lost()
	for _, actual := range c.truth {
		if c.erased[uidOf(actual.id)] {
			continue
		}
		named := lost[uidOf(actual.id)+"/"+strconv.Itoa(actual.revision)]
		s := stories[actual.id]
		if s == nil {
			if actual.known && !c.excused(actual) {
				require.True(t, named, "no facts about %s: %v", actual.id, c.factNames())
			}
			continue
		}
		delete(stories, actual.id)
		switch end := s.end(); end {
		case events.FactUnknown:
			require.True(t, named, "%s: %v", actual.id, c.factNames())
		case events.FactSuperseded, events.FactCancelled: // depends on what completed before, maybe unobserved
			require.Contains(t, []events.Fact{events.FactSuperseded, events.FactCancelled}, actual.end, "%s: %v %v", actual.id,
				c.factNames(), c.truths())
		default:
			require.Equal(t, actual.end, end, "%s: %v %v", actual.id, c.factNames(), c.truths())
		}
	}
	for id := range stories {
		known := slices.ContainsFunc(c.truth, func(actual *truth) bool {
			return c.erased[uidOf(id)] && templateOf(actual.id) == templateOf(id)
		})
		require.True(t, known, "invented %s: %v", id, c.factNames())
	}
	require.Empty(t, c.state.Waiting)
	c.replay()
}

// lost returns the revisions that gaps name, by UID. Each gap must lie in an outage.
func (c *cluster) lost() map[string]bool {
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

// after returns the next revision of the same object.
func (c *cluster) after(actual *truth) *truth {
	if i := slices.Index(c.truth, actual) + 1; i < len(c.truth) && uidOf(c.truth[i].id) == uidOf(actual.id) {
		return c.truth[i]
	}
	return nil
}

// excused reports whether nobody could observe the rollout: it was the newest of an object deleted in the outage.
func (c *cluster) excused(actual *truth) bool {
	uid, gone := uidOf(actual.id), false
	later := map[string]bool{}
	for i := slices.Index(c.truth, actual); i < len(c.truth); i++ {
		later[c.truth[i].id] = true
	}
	for _, f := range c.facts {
		if f.Workload.UID != uid {
			continue
		}
		gone = f.Provenance == events.ProvenanceReconstructed && (f.Fact == events.FactRemoved)
		if f.Rollout != nil && later[f.Rollout.ID] {
			return false
		}
	}
	return gone || !c.seen(uid)
}

func (c *cluster) truths() []string {
	all := []string{}
	for _, actual := range c.truth {
		all = append(all, fmt.Sprintf("%s %v %s", actual.id, actual.known, actual.end))
	}
	return all
}

// seen reports whether an object has facts: one that existed in an outage only has none.
func (c *cluster) seen(uid string) bool {
	return slices.ContainsFunc(c.facts, func(f events.DeployFact) bool { return f.Workload.UID == uid })
}

func uidOf(id string) string { return strings.Split(id, "/")[1] }

// templateOf returns a Deployment's rollout id without numbers: they differ if a ReplicaSet was recreated unobserved.
func templateOf(id string) string {
	parts := strings.Split(id, "/")
	return parts[1] + "/" + parts[3]
}
