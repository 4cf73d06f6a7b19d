package inflight

import (
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

const (
	// firstDelay is how long a workload must not change before its pods are listed. It doubles with each list up to
	// maxDelay. A workload that changes all the time is listed after maxDelay.
	firstDelay = 2 * time.Second
	maxDelay   = 10 * time.Second
)

// Tracker knows the rollouts in flight. It is not safe for concurrent use.
type Tracker struct {
	workloads map[string]*workload        // by UID
	sets      map[string]*object.Revision // the newest ReplicaSet of each Deployment, by the UID of the Deployment
	waiting   map[string]*workload        // those with a list to come, by UID
}

type workload struct {
	latest   *object.Workload
	revision string
	complete bool // the rollout of the revision has ended

	since     time.Time // of the first change after the last list
	due       time.Time
	delay     time.Duration
	published string // summary of the last published list
}

// unknown is what an earlier leader may have published.
const unknown = "unknown"

// NewTracker returns a tracker of no workloads.
func NewTracker() *Tracker {
	return &Tracker{
		workloads: make(map[string]*workload), sets: make(map[string]*object.Revision), waiting: make(map[string]*workload),
	}
}

// Target is the pods of the newest revision of a workload.
type Target struct {
	Workload *object.Workload
	// Revision is the name of the ReplicaSet or of the ControllerRevision of a StatefulSet; the template generation of a
	// DaemonSet.
	Revision string
	// Selector selects the pods by a label. Owner is the UID of their controller.
	Selector, Owner string
}

// Observe records a published version of a workload or of a revision.
func (t *Tracker) Observe(v object.Version) {
	switch o := v.Object.(type) {
	case *object.Workload:
		uid := string(o.UID)
		if v.Verb == events.VerbDeleted {
			delete(t.workloads, uid)
			delete(t.sets, uid)
			delete(t.waiting, uid)
			return
		}
		w := t.workloads[uid]
		if w == nil {
			w = &workload{}
			if v.Origin != object.Changed {
				w.published = unknown
			}
			t.workloads[uid] = w
		}
		w.latest = o
		t.schedule(w, v.ObservedAt)
	case *object.Revision:
		if o.Kind != object.ReplicaSet || o.Owner.UID == "" {
			return
		}
		newest := t.sets[o.Owner.UID]
		switch {
		case v.Verb == events.VerbDeleted || v.Origin == object.Unreported:
			if newest != nil && newest.UID == o.UID {
				delete(t.sets, o.Owner.UID)
			}
			return
		case newest != nil && newest.UID != o.UID && newest.Number > o.Number:
			return
		}
		t.sets[o.Owner.UID] = o
		if w := t.workloads[o.Owner.UID]; w != nil {
			t.schedule(w, v.ObservedAt)
		}
	}
}

// schedule sets when the pods are listed.
func (t *Tracker) schedule(w *workload, now time.Time) {
	o, uid := w.latest, string(w.latest.UID)
	if revision := revisionOf(o); revision != w.revision {
		if w.revision != "" {
			w.published = ""
		}
		w.revision, w.complete = revision, false
	}
	desired := int32(1)
	if o.Replicas != nil {
		desired = *o.Replicas
	}
	s := &o.Status
	available := s.Available >= max(desired, s.Replicas)
	observed := s.ObservedGeneration >= o.Generation
	w.complete = w.complete || available && observed && s.Updated >= desired || t.reportsCompletion(o)
	if w.complete || available || o.Paused || desired == 0 || w.revision == "" {
		w.since = time.Time{}
		delete(t.waiting, uid)
		return
	}
	if w.since.IsZero() {
		w.since = now
	}
	w.delay = firstDelay
	w.due = earlier(now.Add(firstDelay), w.since.Add(maxDelay))
	t.waiting[uid] = w
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// revisionOf identifies the newest revision of a workload, empty for none.
func revisionOf(w *object.Workload) string {
	switch w.Kind {
	case object.Deployment:
		if number := w.RevisionNumber(); number > 0 {
			return strconv.FormatInt(number, 10)
		}
		return ""
	case object.StatefulSet:
		return w.Status.UpdateRevision
	case object.DaemonSet:
		return w.TemplateGeneration
	case object.ReplicaSet, object.ControllerRevision, object.Pod:
	}
	return ""
}

// reportsCompletion reports whether the Deployment controller reports that the newest ReplicaSet was complete once. The
// condition may still be about an earlier one.
func (t *Tracker) reportsCompletion(w *object.Workload) bool {
	set := t.set(w)
	if set == nil {
		return false
	}
	for i := range w.Status.Conditions {
		c := &w.Status.Conditions[i]
		if c.Type == string(appsv1.DeploymentProgressing) {
			return c.Reason == "NewReplicaSetAvailable" && strings.Contains(c.Message, strconv.Quote(set.Name))
		}
	}
	return false
}

// set returns the ReplicaSet of the Deployment's revision; nil if it is not known yet.
func (t *Tracker) set(w *object.Workload) *object.Revision {
	set := t.sets[string(w.UID)]
	if set == nil || set.Number != w.RevisionNumber() {
		return nil
	}
	return set
}

// Next returns the pods to list now. If there are none, it returns when the next are due, zero for never. The caller
// calls [Tracker.Listed] or [Tracker.Postpone] afterwards.
func (t *Tracker) Next(now time.Time) (Target, time.Time, bool) {
	for {
		var next *workload
		for _, w := range t.waiting {
			if next == nil || w.due.Before(next.due) {
				next = w
			}
		}
		switch {
		case next == nil:
			return Target{}, time.Time{}, false
		case now.Before(next.due):
			return Target{}, next.due, false
		}
		if target, known := t.target(next); known {
			return target, time.Time{}, true
		}
		next.postpone(now)
	}
}

func (t *Tracker) target(w *workload) (Target, bool) {
	target := Target{Workload: w.latest, Revision: w.revision, Owner: string(w.latest.UID)}
	switch w.latest.Kind {
	case object.Deployment:
		set := t.set(w.latest)
		if set == nil {
			return Target{}, false
		}
		target.Revision, target.Owner = set.Name, string(set.UID)
		target.Selector = appsv1.DefaultDeploymentUniqueLabelKey + "=" + set.Hash
	case object.DaemonSet:
		target.Selector = "pod-template-generation=" + w.revision
	default:
		target.Selector = appsv1.ControllerRevisionHashLabelKey + "=" + w.revision
	}
	return target, true
}

// Postpone records that the pods were not listed.
func (t *Tracker) Postpone(target Target, now time.Time) {
	if w := t.workloads[string(target.Workload.UID)]; w != nil {
		w.postpone(now)
	}
}

func (w *workload) postpone(now time.Time) {
	w.due, w.delay, w.since = now.Add(w.delay), min(2*w.delay, maxDelay), time.Time{}
}

// Listed records the summary of a list; empty if no pod fails. It reports whether the list must be published: its
// summary differs from that of the last one, which may be of an earlier leader.
func (t *Tracker) Listed(target Target, summary string, now time.Time) bool {
	w := t.workloads[string(target.Workload.UID)]
	if w == nil || w.revision != revisionOf(target.Workload) {
		return false
	}
	changed := w.published != summary
	w.published = summary
	if w.latest == target.Workload { // else a change has set when the next list is due
		w.postpone(now)
	}
	return changed
}
