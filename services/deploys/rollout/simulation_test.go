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
	require.Empty(t, c.differences(), "%v %v", c.factNames(), c.describeActual())
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

// checkOutages compares the facts of a history with outages.
func checkOutages(t testing.TB, kind string, seed uint64) {
	c := outageHistory(t, kind, seed)
	require.Empty(t, c.differences(), "%v %v", c.factNames(), c.describeActual())
	c.checkReplay()
}

// outageHistory returns a history of random actions with outages of the watcher.
func outageHistory(t testing.TB, kind string, seed uint64) *cluster {
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
	return c
}

func (c *cluster) describeActual() []string {
	all := []string{}
	for _, actual := range c.actual {
		all = append(all, fmt.Sprintf("%s %v %s", actual.id, actual.visible, actual.end))
	}
	return all
}

func uidOf(id string) string { return strings.Split(id, "/")[1] }
