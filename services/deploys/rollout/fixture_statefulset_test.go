package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

type controllerRevision struct {
	name, uid, version string
	tpl                template
	created            time.Time
	revision           int
}

type statefulPod struct {
	revision string
	ready    bool
}

// statefulSet simulates a StatefulSet, its controller and the kubelets.
type statefulSet struct {
	*fixture

	present    bool
	objectUID  string
	version    string
	created    time.Time
	generation int
	observed   int
	replicas   int
	strategy   string
	partition  int
	tpl        template
	written    time.Time
	revisions  []*controllerRevision
	pods       []statefulPod
	current    string
	update     string
	status     events.Counts
	hasStatus  bool
	slow       bool
	published  string // update revision of the last status
}

func newStatefulSet(t testing.TB, seed uint64) *statefulSet {
	s := &statefulSet{fixture: newFixture(t, rollout.StatefulSet, seed), strategy: "RollingUpdate"}
	s.workload = s
	return s
}

func (s *statefulSet) exists() bool { return s.present }

func (s *statefulSet) create(replicas int, image string) {
	s.present, s.objectUID, s.created = true, s.uid("s"), s.second()
	s.generation, s.observed, s.replicas, s.partition = 1, 0, replicas, 0
	s.tpl, s.written, s.revisions, s.pods = template{image: image}, s.second(), nil, nil
	s.current, s.update, s.status, s.hasStatus = "", "", events.Counts{}, false
	s.write()
}

func (s *statefulSet) observation(verb events.Verb) rollout.Input {
	return rollout.Input{Workload: &events.ObservedWorkload{
		Kind: events.WorkloadKindStatefulset, Object: s.meta("web", s.objectUID, s.created, verb), Generation: s.generation,
		ObservedGeneration: s.observed,
		SpecReplicas:       new(s.replicas), Strategy: s.strategy, Partition: s.partition,
		Template:        s.tpl.observed(s.written),
		CurrentRevision: s.current, UpdateRevision: s.update, HasStatus: s.hasStatus,
		Replicas: s.status.Total, UpdatedReplicas: s.status.Updated, ReadyReplicas: s.status.Ready,
		AvailableReplicas: s.status.Available,
	}}
}

func (s *statefulSet) write() {
	in := s.observation(events.VerbUpserted)
	s.version = in.Workload.Object.ResourceVersion
	s.send(in)
}

func (s *statefulSet) revisionObservation(r *controllerRevision, verb events.Verb) rollout.Input {
	return rollout.Input{Revision: &events.ObservedWorkloadRevision{
		Kind: events.WorkloadRevisionKindControllerrevision, Object: s.meta(r.name, r.uid, r.created, verb),
		Workload: "web", WorkloadUID: s.objectUID,
		Revision: r.revision, TemplateHash: r.tpl.hash(),
	}}
}

func (s *statefulSet) writeRevision(r *controllerRevision) {
	in := s.revisionObservation(r, events.VerbUpserted)
	r.version = in.Revision.Object.ResourceVersion
	s.send(in)
}

func (s *statefulSet) relist() []rollout.Input {
	w := s.observation(events.VerbUpserted)
	w.Workload.Object.ResourceVersion = s.version
	list := []rollout.Input{w}
	for _, r := range s.revisions {
		in := s.revisionObservation(r, events.VerbUpserted)
		in.Revision.Object.ResourceVersion = r.version
		list = append(list, in)
	}
	return list
}

func (s *statefulSet) spec(change func()) {
	before := s.tpl
	change()
	if s.tpl != before {
		s.written = s.second()
	}
	s.generation++
	s.write()
}

func (s *statefulSet) edit(image string) {
	s.spec(func() { s.tpl.image = image; s.tpl.restartedAt = "" })
}

func (s *statefulSet) restart() {
	s.spec(func() { s.tpl.restartedAt = s.now.Format(time.RFC3339Nano) })
}
func (s *statefulSet) scale(n int)        { s.spec(func() { s.replicas = n }) }
func (s *statefulSet) setPartition(n int) { s.spec(func() { s.partition = n }) }

// deletePod deletes a pod. Its controller creates it again.
func (s *statefulSet) deletePod(ordinal int) { s.pods[ordinal] = newPod(s.revisionOf(ordinal)) }

func newPod(revision string) statefulPod { return statefulPod{revision: revision} }

func (s *statefulSet) delete() {
	s.present = false
	s.recordDeletion(s.objectUID)
	s.send(s.observation(events.VerbDeleted))
	for _, r := range s.revisions {
		s.send(s.revisionObservation(r, events.VerbDeleted))
	}
}

func (s *statefulSet) step() {
	if !s.present {
		return
	}
	s.sync()
	if s.slow {
		return
	}
	for i := range s.pods {
		if !s.pods[i].ready {
			s.pods[i].ready = true
			return
		}
	}
}

// revisionOf returns the revision of a new pod.
func (s *statefulSet) revisionOf(i int) string {
	if i < s.partition && s.strategy != "OnDelete" {
		return s.current
	}
	return s.update
}

func (s *statefulSet) sync() {
	highest := 0
	var target *controllerRevision
	for _, r := range s.revisions {
		highest = max(highest, r.revision)
		if r.tpl == s.tpl {
			target = r
		}
	}
	changed, reused := true, target != nil // the update revision
	switch {
	case target == nil:
		target = &controllerRevision{
			name: "web-" + s.tpl.hash(), uid: s.uid("cr"), tpl: s.tpl, created: s.second(), revision: highest + 1,
		}
		s.revisions = append(s.revisions, target)
	case target.revision < highest:
		target.revision = highest + 1
	default:
		changed = false
	}
	if changed {
		id := fmt.Sprintf("cluster/%s/%s/%d", s.objectUID, target.name, target.revision)
		s.recordStart(actualRollout{
			id: id, revision: target.revision, tpl: target.tpl, written: s.written, reused: reused,
		})
		s.writeRevision(target)
	}
	if s.held && s.rng.IntN(12) == 0 {
		return // the status is written later
	}
	s.update = target.name
	if s.current == "" {
		s.current = target.name
	}
	s.show()
	s.rollPods()
	s.writeStatus()
}

// rollPods replaces the next pod.
func (s *statefulSet) rollPods() {
	for _, pod := range s.pods {
		if !pod.ready {
			return
		}
	}
	switch {
	case len(s.pods) < s.replicas:
		s.pods = append(s.pods, newPod(s.revisionOf(len(s.pods))))
		return
	case len(s.pods) > s.replicas:
		s.pods = s.pods[:len(s.pods)-1]
		return
	case s.strategy == "OnDelete":
		return
	}
	for i := len(s.pods) - 1; i >= s.partition; i-- {
		if s.pods[i].revision != s.update {
			s.pods[i] = newPod(s.update)
			return
		}
	}
}

func (s *statefulSet) writeStatus() {
	var c events.Counts
	for _, pod := range s.pods {
		c.Total++
		if pod.ready {
			c.Ready++
			c.Available++
		}
		if pod.revision == s.update {
			c.Updated++
		}
	}
	current := s.current
	full := c.Updated == c.Total && c.Ready == c.Total && c.Total == s.replicas
	if full && s.strategy != "OnDelete" {
		current = s.update
	}
	if s.hasStatus && s.observed == s.generation && equalCounts(c, s.status) && current == s.current &&
		s.published == s.update {
		return
	}
	s.current, s.observed, s.status, s.hasStatus = current, s.generation, c, true
	s.write()
	s.published = s.update
	if full {
		s.recordEnd(events.FactCompleted)
	}
}
