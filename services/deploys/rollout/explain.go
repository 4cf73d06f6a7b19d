package rollout

import (
	"slices"
	"strconv"
	"time"

	"lockstep.internal/libs/podstate"
	"lockstep.internal/schemas/gen/events"
)

const (
	// schedulingPatience is how long a pod may wait for a node before its rollout stalls. Most pods that find a node at
	// all find it sooner.
	schedulingPatience = 10 * time.Second
	// firstPause is how long a rollout that recovered must make no progress before its pods stall it again. The pause
	// doubles with each recovered up to maxPause, so that a flapping pod causes few facts.
	firstPause = time.Minute
	maxPause   = 10 * time.Minute
)

// Pods explains why pods of one revision do not start. Reason is empty if none fails.
type Pods struct {
	// UID and Version of the workload when the pods were listed.
	UID     string `json:"uid"`
	Version string `json:"version"`
	// Revision is the name of the ReplicaSet or ControllerRevision; the template generation for a DaemonSet.
	Revision string `json:"revision"`
	// ListVersion orders lists.
	ListVersion string `json:"list_version"`

	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is set if the cluster may end the failure without a person.
	Since time.Time `json:"since,omitzero"`
}

// pods applies a list of pods. It ignores a list that is not newer than the known one.
func (p *step) pods(in Input) bool {
	s, w := p.s, in.Pods
	if w.Object.UID != s.UID || s.View == nil || in.Epoch != s.Epoch || !isValidVersion(w.ListVersion) ||
		!isValidVersion(w.Object.ResourceVersion) {
		return false
	}
	listed := Pods{
		UID: w.Object.UID, Version: w.Object.ResourceVersion, Revision: w.RevisionName, ListVersion: w.ListVersion,
	}
	if known := s.Pods; known != nil {
		order := compareVersions(listed.ListVersion, known.ListVersion)
		if order < 0 || order == 0 && compareVersions(listed.Version, known.Version) <= 0 {
			return false
		}
	}
	if f := firstFailure(w); f != nil {
		listed.Reason, listed.Message = f.Reason, f.Message
		if f.MayPass() {
			listed.Since = normalizeTime(f.Since)
		}
	}
	p.s = s.clone()
	p.s.Pods = &listed
	return true
}

// firstFailure returns the first failure that needs a person, else the first one that may pass, else nil.
func firstFailure(w *events.ObservedWorkloadPods) *podstate.Failure {
	var first *podstate.Failure
	for i := range w.Pods {
		pod := &w.Pods[i]
		f := podstate.Explain("its pods", podstate.Pod{
			Containers: pod.Containers, Conditions: pod.Conditions,
			CreatedAt: pod.CreatedAt, ObservedAt: w.Object.ObservedAt,
		})
		if f != nil && (first == nil || first.MayPass() && !f.MayPass()) {
			first = f
		}
	}
	return first
}

// explainAt returns when the newest list of pods stalls the rollout in flight. It returns false if the list names no
// failure of this rollout, or the facts of this stall name it already.
func (s State) explainAt() (time.Time, bool) {
	r, pods := s.Rollout, s.Pods
	if pods == nil || pods.Reason == "" || !s.InFlight() || s.View == nil || s.View.Paused || len(s.Waiting) > 0 ||
		slices.Contains(r.Reasons, pods.Reason) || !r.has(s.Key.Kind, pods) {
		return time.Time{}, false
	}
	at := r.BestAt
	if r.Stalled == "" {
		at = at.Add(r.pause())
	}
	if !pods.Since.IsZero() {
		at = later(at, pods.Since.Add(schedulingPatience))
	}
	return at, true
}

// has reports whether the list has pods of the rollout. A StatefulSet that is rolled back uses the name of a revision
// again, so the list must not be older than the rollout.
func (r *Rollout) has(kind string, pods *Pods) bool {
	name := r.Name
	if kind == DaemonSet {
		name = strconv.Itoa(r.Revision)
	}
	return name == pods.Revision && compareVersions(pods.Version, r.Version) >= 0
}

// pause returns how long the rollout must make no progress before its pods stall it.
func (r *Rollout) pause() time.Duration {
	at := slices.IndexFunc(r.Ordinals, func(o Ordinal) bool { return o.Fact == events.FactRecovered })
	if at < 0 {
		return 0
	}
	pause := firstPause
	for range r.Ordinals[at].Last - 1 {
		if pause *= 2; pause >= maxPause {
			return maxPause
		}
	}
	return pause
}

// explainStall emits stalled with the reason of the pods. A rollout that stalls for another reason gets the fact again.
func (p *step) explainStall() {
	at, fails := p.s.explainAt()
	if !fails || p.at.Before(at) {
		return
	}
	r, pods := p.s.Rollout, p.s.Pods
	if r.Stalled == "" {
		r.Stalled = stalledByPods
	}
	r.Reasons, r.Message, r.MayPass = append(r.Reasons, pods.Reason), pods.Message, !pods.Since.IsZero()
	f := p.repeatableFact(r, events.FactStalled, p.at, timeObservation)
	f.Reason, f.Message = pods.Reason, pods.Message
	p.emit(f)
}

// isStuck reports whether a stall fails the environment. A pod that waits for a node fails it only after the progress
// deadline: an autoscaler may add a node.
func (r *Rollout) isStuck(v View) bool {
	return r.Stalled != "" && (r.Stalled != stalledByPods || !r.MayPass || r.isLate(v))
}

// Progress measures how far a rollout is. Updated and Available are numbers of new pods, Old of others.
type Progress struct {
	Updated   int `json:"updated,omitempty"`
	Old       int `json:"old,omitempty"`
	Available int `json:"available,omitempty"`
}

// progressOf returns the progress that the counts show. Available is the least possible number.
func progressOf(c Counts) Progress {
	old := max(0, c.Total-c.Updated)
	return Progress{Updated: c.Updated, Old: old, Available: max(0, c.Available-old)}
}

// advance reports whether the view shows more progress than any view before. A pod that becomes available again and
// again makes progress once. A scaled rollout is measured anew.
func (r *Rollout) advance(before, v View) bool {
	now := progressOf(v.Counts)
	if !v.isObserved() {
		return false
	}
	if before.Counts.Desired != v.Counts.Desired {
		r.Best = now
		return false
	}
	best := Progress{
		Updated: max(r.Best.Updated, now.Updated), Old: min(r.Best.Old, now.Old),
		Available: max(r.Best.Available, now.Available),
	}
	if best == r.Best {
		return false
	}
	r.Best, r.BestAt = best, v.At
	return true
}
