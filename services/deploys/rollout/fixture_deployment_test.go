package rollout_test

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// template is the relevant part of a pod template.
type template struct {
	image, env, restartedAt string
}

func (t template) hash() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.image + "|" + t.env + "|" + t.restartedAt))
	return fmt.Sprintf("%08x", h.Sum32())
}

func (t template) observed(written time.Time) *events.PodTemplate {
	return &events.PodTemplate{
		Digest: t.image + "|" + t.env, RestartedAt: t.restartedAt, ChangedAt: &written,
		Images:      []events.TemplateImage{{Container: "main", Image: t.image}},
		Annotations: map[string]string{"lockstep.dev/commit": t.image},
	}
}

type replicaSet struct {
	name, uid, version string
	tpl                template
	created            time.Time
	revision           int
	history            []int
	want               int
	ready, pending     int
	terminating        int
}

func (r *replicaSet) pods() int { return r.ready + r.pending }

// deployment simulates a Deployment, its controller, the ReplicaSet controller and the kubelets.
type deployment struct {
	*fixture

	present            bool
	objectUID          string
	version            string
	created            time.Time
	generation         int
	observed           int
	replicas           int
	paused             bool
	strategy           string
	deadline           *int
	tpl                template
	written            time.Time
	revision           int // annotation
	sets               []*replicaSet
	status             events.Counts
	progress           events.Condition
	quota              bool // the API server refuses new pods
	slow               bool // pods do not become ready
	lingering          bool // pods terminate slowly
	late               bool // the progress deadline has passed
	keep               int  // revisionHistoryLimit
	currentRevision    int  // revision of the current ReplicaSet
	previousAnnotation int  // revision annotation before it became current
	hasStatus          bool
}

func newDeployment(t testing.TB, seed uint64) *deployment {
	seconds := 600
	d := &deployment{
		fixture: newFixture(t, rollout.Deployment, seed), strategy: "RollingUpdate", deadline: &seconds, keep: 10,
	}
	d.workload = d
	return d
}

func (d *deployment) exists() bool { return d.present }

func (d *deployment) create(replicas int, image string) {
	d.present, d.objectUID, d.created = true, d.uid("d"), d.second()
	d.generation, d.observed, d.replicas, d.revision, d.paused = 1, 0, replicas, 0, false
	d.tpl, d.written, d.sets = template{image: image}, d.second(), nil
	d.status, d.progress = events.Counts{}, events.Condition{}
	d.hasStatus, d.late, d.currentRevision, d.previousAnnotation = false, false, 0, 0
	d.write()
}

func (d *deployment) observation(verb events.Verb) rollout.Input {
	w := &events.ObservedWorkload{
		Kind: events.WorkloadKindDeployment, Object: d.meta("web", d.objectUID, d.created, verb),
		Generation: d.generation, ObservedGeneration: d.observed,
		SpecReplicas: new(d.replicas), Paused: d.paused, Strategy: d.strategy, ProgressDeadlineSeconds: d.deadline,
		Template: d.tpl.observed(d.written), Revision: d.revision, HasStatus: d.hasStatus,
		Replicas: d.status.Total, UpdatedReplicas: d.status.Updated,
		ReadyReplicas: d.status.Ready, AvailableReplicas: d.status.Available,
		UnavailableReplicas: d.status.Unavailable, TerminatingReplicas: d.status.Terminating,
	}
	if d.progress.Type != "" {
		w.Conditions = append(w.Conditions, d.progress)
	}
	if set := d.refusedSet(); d.hasStatus && set != nil {
		w.Conditions = append(w.Conditions, events.Condition{
			Type: "ReplicaFailure", Status: "True", Reason: "FailedCreate",
			Message: `pods "` + set.name + `-x" is forbidden: exceeded quota`,
		})
	}
	return rollout.Input{Workload: w}
}

// refusedSet returns the ReplicaSet of which the API server refuses pods, the newest one first; nil for none.
func (d *deployment) refusedSet() *replicaSet {
	isRefused := func(r *replicaSet) bool { return d.quota && r != nil && r.pods() < r.want }
	if newest := d.newestSet(); isRefused(newest) {
		return newest
	}
	if at := slices.IndexFunc(d.sets, isRefused); at >= 0 {
		return d.sets[at]
	}
	return nil
}

// write publishes a version of the Deployment.
func (d *deployment) write() {
	in := d.observation(events.VerbUpserted)
	d.version = in.Workload.Object.ResourceVersion
	d.send(in)
	if len(d.actual) == 0 {
		return
	}
	c, actual := d.status, d.newest()
	if actual.tpl != d.tpl || uidOf(actual.id) != d.objectUID || d.currentRevision != d.revision {
		return
	}
	if d.revision != d.previousAnnotation || c.Updated > 0 || d.isNamed() {
		d.show()
	}
	if !d.down && d.showsEnd() {
		actual.endSeen = true
	}
	if d.isComplete() {
		if actual.end == "" {
			actual.paused = d.paused
		}
		d.recordEnd(events.FactCompleted)
	}
}

// isNamed reports whether the progress condition names the newest rollout.
func (d *deployment) isNamed() bool {
	return strings.Contains(d.progress.Message, `"web-`+d.newest().tpl.hash()+`"`)
}

// showsEnd reports whether the Deployment shows that the newest rollout completed, now or before.
func (d *deployment) showsEnd() bool {
	c := d.progress
	return d.isComplete() ||
		c.Reason == "NewReplicaSetAvailable" && c.LastUpdateTime.After(d.newest().started) && d.isNamed()
}

// isComplete reports whether the status shows that the newest rollout is complete. The status may still count the pods
// of a deleted ReplicaSet.
func (d *deployment) isComplete() bool {
	c := d.status
	stale := d.newest().again && d.newestSet() != nil && d.newestSet().ready < d.replicas
	return d.hasStatus && d.observed == d.generation && c.Updated == d.replicas && c.Total == d.replicas &&
		c.Available == d.replicas && !stale
}

func (d *deployment) setObservation(r *replicaSet, verb events.Verb) rollout.Input {
	return rollout.Input{Revision: &events.ObservedWorkloadRevision{
		Kind: events.WorkloadRevisionKindReplicaset, Object: d.meta(r.name, r.uid, r.created, verb),
		Workload: "web", WorkloadUID: d.objectUID,
		Revision: r.revision, RevisionHistory: slices.Clone(r.history), TemplateHash: r.tpl.hash(),
	}}
}

func (d *deployment) writeSet(r *replicaSet) {
	in := d.setObservation(r, events.VerbUpserted)
	r.version = in.Revision.Object.ResourceVersion
	d.send(in)
}

func (d *deployment) relist() []rollout.Input {
	w := d.observation(events.VerbUpserted)
	w.Workload.Object.ResourceVersion = d.version
	if len(d.actual) > 0 && d.newest().end == events.FactCompleted && d.newest().tpl == d.tpl && d.showsEnd() &&
		(d.status.Updated > 0 || d.isNamed() || d.newestSet() != nil) {
		d.newest().endSeen = true // else nothing shows which ReplicaSet is complete
	}
	list := []rollout.Input{w}
	for _, r := range d.sets {
		in := d.setObservation(r, events.VerbUpserted)
		in.Revision.Object.ResourceVersion = r.version
		list = append(list, in)
	}
	return list
}

// Actions of users.

func (d *deployment) spec(change func()) {
	before := d.tpl
	change()
	if d.tpl != before {
		d.written = d.second()
	}
	d.generation++
	d.late = false
	d.write()
}

func (d *deployment) edit(image string) {
	d.spec(func() { d.tpl.image = image; d.tpl.restartedAt = "" })
}
func (d *deployment) setEnv(env string) { d.spec(func() { d.tpl.env = env }) }
func (d *deployment) restart()          { d.spec(func() { d.tpl.restartedAt = d.now.Format(time.RFC3339Nano) }) }
func (d *deployment) scale(n int)       { d.spec(func() { d.replicas = n }) }
func (d *deployment) pause()            { d.spec(func() { d.paused = true }) }
func (d *deployment) resume()           { d.spec(func() { d.paused = false }) }

func (d *deployment) undo(revision int) {
	for _, r := range d.sets {
		if r.revision == revision {
			d.spec(func() { d.tpl = r.tpl })
			return
		}
	}
	d.t.Fatalf("no revision %d to undo to", revision)
}

func (d *deployment) delete() {
	d.present = false
	d.recordDeletion(d.objectUID)
	sets := d.sets
	d.send(d.observation(events.VerbDeleted))
	for _, r := range sets {
		d.send(d.setObservation(r, events.VerbDeleted))
	}
	d.sets = nil
}

// deleteSet deletes the current ReplicaSet by hand.
func (d *deployment) deleteSet() {
	r := d.newestSet()
	if r == nil {
		return
	}
	d.deletedByHand[d.objectUID] = true
	d.lostNumbers[d.objectUID] = d.lostNumbers[d.objectUID] || d.down
	d.sets = slices.DeleteFunc(d.sets, func(o *replicaSet) bool { return o == r })
	d.send(d.setObservation(r, events.VerbDeleted))
}

// Actions of the controllers.

func (d *deployment) newestSet() *replicaSet {
	for _, r := range d.sets {
		if r.tpl == d.tpl {
			return r
		}
	}
	return nil
}

func (d *deployment) step() {
	if !d.present {
		return
	}
	d.sync()
	d.runKubelets()
}

func (d *deployment) sync() {
	d.writePausedCondition()
	current := d.newestSet()
	oldPods, highest := 0, 0
	for _, r := range d.sets {
		if r != current {
			oldPods += r.pods() + r.terminating
			highest = max(highest, r.revision)
		}
	}
	created, bumped := false, false
	switch {
	case current != nil && current.revision <= highest:
		current.history = append(current.history, current.revision)
		current.revision = highest + 1
		d.makeCurrent(current)
		d.writeSet(current)
		bumped = true // the next sync writes it to the Deployment
	case current == nil && !d.paused && (d.strategy != "Recreate" || oldPods == 0):
		hash := d.tpl.hash()
		current = &replicaSet{name: "web-" + hash, uid: d.uid("rs"), tpl: d.tpl, created: d.second(), revision: highest + 1}
		d.sets = append(d.sets, current)
		d.makeCurrent(current)
		d.writeSet(current)
		created = true
	}
	isWritten := bumped || !created && current != nil && d.revision == current.revision
	if isWritten && current.revision < d.currentRevision {
		d.makeCurrent(current) // the newest ReplicaSet was deleted by hand
	}
	if current != nil && !isWritten {
		if d.rng.IntN(12) == 0 && d.held {
			return // the write conflicts
		}
		if current.revision < d.currentRevision {
			d.makeCurrent(current)
		}
		if created {
			d.setProgress("True", "NewReplicaSetCreated", `Created new replica set "`+current.name+`"`)
		}
		d.revision = current.revision
		d.write()
	}
	d.scaleSets(current)
	d.writeStatus(current)
	d.cleanUp(current)
}

// writePausedCondition writes the progress condition when the Deployment is paused or resumed.
func (d *deployment) writePausedCondition() {
	paused := d.progress.Reason == "DeploymentPaused"
	switch {
	case d.deadline == nil || d.paused == paused || d.progress.Reason == "ProgressDeadlineExceeded":
		return
	case d.paused:
		d.setProgress("Unknown", "DeploymentPaused", "Deployment is paused")
	default:
		d.setProgress("Unknown", "DeploymentResumed", "Deployment is resumed")
	}
	d.write()
}

// setProgress sets the progress condition.
func (d *deployment) setProgress(status, reason, message string) {
	if d.deadline == nil || d.progress.Reason == reason && d.progress.Message == message {
		return
	}
	at := d.second()
	d.progress = events.Condition{
		Type: "Progressing", Status: status, Reason: reason, Message: message, LastUpdateTime: &at,
	}
}

// makeCurrent records that a ReplicaSet is the current one. A recreated ReplicaSet continues the rollout of the deleted
// one.
func (d *deployment) makeCurrent(r *replicaSet) {
	recreated := len(d.actual) > 0 && d.newest().tpl == r.tpl && uidOf(d.newest().id) == d.objectUID
	if recreated && d.lostNumbers[d.objectUID] && !d.newest().endSeen {
		d.newest().end, d.newest().again = "", true // nothing that a watcher observed shows an earlier end
	}
	if recreated {
		d.newest().numbers = append(d.newest().numbers, r.revision)
	} else {
		d.recordStart(actualRollout{
			id: fmt.Sprintf("cluster/%s/%d/%s", d.objectUID, r.revision, r.tpl.hash()), revision: r.revision, tpl: r.tpl,
			written: d.written, reused: len(r.history) > 0,
		})
	}
	d.currentRevision, d.previousAnnotation = r.revision, d.revision
}

// scaleSets scales the ReplicaSets by one step.
func (d *deployment) scaleSets(current *replicaSet) {
	want, ready, oldWant := 0, 0, 0
	for _, r := range d.sets {
		want += r.want
		ready += r.ready
		if r != current {
			oldWant += r.want
		}
	}
	resize := func(r *replicaSet, n int) {
		if r.want != n {
			r.want = n
			d.writeSet(r)
		}
	}
	switch {
	case d.paused:
		if current != nil && oldWant == 0 {
			resize(current, d.replicas)
		}
		return
	case d.strategy == "Recreate":
		for _, r := range d.sets {
			if r != current {
				resize(r, 0)
			}
		}
		if current != nil && oldWant == 0 {
			resize(current, d.replicas)
		}
		return
	case current == nil:
		return
	}
	if oldWant == 0 || current.want > d.replicas {
		resize(current, d.replicas)
	} else if room := d.replicas + 1 - want; room > 0 && current.want < d.replicas {
		resize(current, min(d.replicas, current.want+room))
	}
	spare := ready - max(0, d.replicas-1)
	for _, r := range d.sets {
		if r == current || r.want == 0 {
			continue
		}
		if spare > 0 || r.pending > 0 || d.replicas == 0 {
			resize(r, r.want-1)
			return
		}
	}
}

func (d *deployment) writeStatus(current *replicaSet) {
	var c events.Counts
	terminating := 0
	for _, r := range d.sets {
		c.Total += r.pods()
		c.Ready += r.ready
		terminating += r.terminating
	}
	c.Available = c.Ready
	if current != nil {
		c.Updated = current.pods()
	}
	c.Terminating = &terminating
	c.Unavailable = max(0, d.replicas-c.Available)
	before := d.progress
	complete := c.Updated == d.replicas && c.Total == d.replicas && c.Available == d.replicas
	if !d.paused && current != nil && (c.Updated != c.Total || d.progress.Reason != "NewReplicaSetAvailable") {
		switch {
		case complete:
			d.setProgress("True", "NewReplicaSetAvailable", `ReplicaSet "`+current.name+`" has successfully progressed.`)
		case d.late:
			d.setProgress("False", "ProgressDeadlineExceeded", `ReplicaSet "`+current.name+`" has timed out progressing.`)
		default:
			d.setProgress("True", "ReplicaSetUpdated", `ReplicaSet "`+current.name+`" is progressing.`)
		}
	}
	if d.hasStatus && d.observed == d.generation && equalCounts(c, d.status) &&
		before == d.progress {
		return
	}
	d.observed, d.status, d.hasStatus = d.generation, c, true
	d.write()
}

func (d *deployment) cleanUp(current *replicaSet) {
	old := slices.DeleteFunc(slices.Clone(d.sets), func(r *replicaSet) bool { return r == current || r.want+r.pods() > 0 })
	slices.SortFunc(old, func(a, b *replicaSet) int { return a.revision - b.revision })
	for i := range len(old) - d.keep {
		gone := old[i]
		d.sets = slices.DeleteFunc(d.sets, func(r *replicaSet) bool { return r == gone })
		d.send(d.setObservation(gone, events.VerbDeleted))
	}
}

func (d *deployment) runKubelets() {
	for _, r := range d.sets {
		before := *r
		if surplus := r.pods() - r.want; surplus > 0 {
			pending := min(surplus, r.pending)
			r.pending -= pending
			r.ready -= surplus - pending
			r.terminating += surplus - pending
		} else if surplus < 0 && !d.quota {
			r.pending -= surplus
		}
		if r.pending > 0 && !d.slow {
			r.pending--
			r.ready++
		} else if r.terminating > 0 && !d.lingering {
			r.terminating--
		}
		if r.pods() != before.pods() || r.ready != before.ready {
			d.writeSet(r)
		}
	}
}
