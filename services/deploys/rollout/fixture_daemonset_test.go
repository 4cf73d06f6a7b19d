package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

type nodePod struct {
	tpl   template
	ready bool
	gone  bool
}

// daemonSet simulates a DaemonSet, its controller and the kubelets.
type daemonSet struct {
	*fixture

	present    bool
	objectUID  string
	version    string
	created    time.Time
	generation int
	observed   int
	templates  int // template generation
	strategy   string
	tpl        template
	written    time.Time
	nodes      []nodePod
	status     events.Counts
	hasStatus  bool
	slow       bool
}

func newDaemonSet(t testing.TB, seed uint64) *daemonSet {
	d := &daemonSet{fixture: newFixture(t, rollout.DaemonSet, seed), strategy: "RollingUpdate"}
	d.workload = d
	return d
}

func (d *daemonSet) exists() bool { return d.present }

func (d *daemonSet) create(nodes int, image string) {
	d.present, d.objectUID, d.created = true, d.uid("ds"), d.second()
	d.generation, d.observed, d.templates = 1, 0, 1
	d.tpl, d.written, d.nodes = template{image: image}, d.second(), nil
	d.status, d.hasStatus = events.Counts{}, false
	for range nodes {
		d.nodes = append(d.nodes, nodePod{gone: true})
	}
	d.startRollout()
	d.write()
}

func (d *daemonSet) startRollout() {
	d.recordStart(actualRollout{
		id: fmt.Sprintf("cluster/%s/%d", d.objectUID, d.templates), revision: d.templates, tpl: d.tpl, written: d.written,
	})
	d.show()
}

func (d *daemonSet) observation(verb events.Verb) rollout.Input {
	return rollout.Input{Workload: &events.ObservedWorkload{
		Kind: events.WorkloadKindDaemonset, Object: d.meta("web", d.objectUID, d.created, verb), Generation: d.generation,
		ObservedGeneration: d.observed,
		SpecReplicas:       new(d.status.Desired), Strategy: d.strategy, Template: d.tpl.observed(d.written),
		TemplateGeneration: d.templates, HasStatus: d.hasStatus,
		Replicas: d.status.Total, UpdatedReplicas: d.status.Updated, ReadyReplicas: d.status.Ready,
		AvailableReplicas: d.status.Available,
	}}
}

func (d *daemonSet) write() {
	in := d.observation(events.VerbUpserted)
	d.version = in.Workload.Object.ResourceVersion
	d.send(in)
}

func (d *daemonSet) relist() []rollout.Input {
	w := d.observation(events.VerbUpserted)
	w.Workload.Object.ResourceVersion = d.version
	return []rollout.Input{w}
}

func (d *daemonSet) spec(change func()) {
	before := d.tpl
	change()
	d.generation++
	if d.tpl != before {
		d.written = d.second()
		d.templates++
		d.startRollout()
	}
	d.write()
}

func (d *daemonSet) edit(image string) {
	d.spec(func() { d.tpl.image = image; d.tpl.restartedAt = "" })
}

func (d *daemonSet) restart()  { d.spec(func() { d.tpl.restartedAt = d.now.Format(time.RFC3339Nano) }) }
func (d *daemonSet) addNode()  { d.nodes = append(d.nodes, nodePod{gone: true}) }
func (d *daemonSet) loseNode() { d.nodes = d.nodes[:len(d.nodes)-1] }

func (d *daemonSet) delete() {
	d.present = false
	d.recordDeletion(d.objectUID)
	d.send(d.observation(events.VerbDeleted))
}

func (d *daemonSet) step() {
	if !d.present {
		return
	}
	ready := 0
	for i := range d.nodes {
		if d.nodes[i].gone {
			d.nodes[i] = nodePod{tpl: d.tpl}
		}
		if d.nodes[i].ready {
			ready++
		}
	}
	if ready == len(d.nodes) && d.strategy != "OnDelete" {
		for i := range d.nodes {
			if d.nodes[i].tpl != d.tpl {
				d.nodes[i].gone, d.nodes[i].ready = true, false
				break
			}
		}
	}
	d.writeStatus()
	if d.slow {
		return
	}
	for i := range d.nodes {
		if !d.nodes[i].ready && !d.nodes[i].gone {
			d.nodes[i].ready = true
			return
		}
	}
}

func (d *daemonSet) writeStatus() {
	c := events.Counts{Desired: len(d.nodes)}
	for _, n := range d.nodes {
		if n.gone {
			continue
		}
		c.Total++
		if n.ready {
			c.Ready++
			c.Available++
		}
		if n.tpl == d.tpl {
			c.Updated++
		}
	}
	if d.hasStatus && d.observed == d.generation && equalCounts(c, d.status) {
		return
	}
	d.observed, d.status, d.hasStatus = d.generation, c, true
	d.write()
	if c.Updated == c.Desired && c.Available == c.Desired {
		d.recordEnd(events.FactCompleted)
	}
}
