package rollout_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// oracle compares the facts of a history with its simulated rollouts.
type oracle struct {
	*cluster

	// reported rollouts by id.
	reported map[string]*reportedRollout
	found    []string
}

// reportedRollout is a rollout as its facts report it.
type reportedRollout struct {
	id, uid string
	facts   []events.DeployFact
	actual  *actualRollout // nil if it did not happen
}

// end returns the terminal fact, or the zero value.
func (r *reportedRollout) end() events.DeployFact {
	for _, f := range r.facts {
		if isEnd(f.Fact) {
			return f
		}
	}
	return events.DeployFact{}
}

func isEnd(fact events.Fact) bool {
	switch fact {
	case events.FactCompleted, events.FactSuperseded, events.FactCancelled, events.FactUnknown:
		return true
	default:
		return false
	}
}

// checkFacts checks that the facts agree with each other.
func (c *cluster) checkFacts() {
	o := &oracle{cluster: c, reported: map[string]*reportedRollout{}}
	o.checkForm()
	require.Empty(c.t, o.found)
}

// maxAssignments is the maximum number of assignments that are tried.
const maxAssignments = 5000

// differences returns what the facts report otherwise than it happened. If numbers are lost, a fact may be about any
// of several simulated rollouts with one template: the facts agree if one assignment explains all of them.
func (c *cluster) differences() []string {
	o := &oracle{cluster: c, reported: map[string]*reportedRollout{}}
	o.checkForm()
	o.checkOpposites()
	form := o.found
	var first []string
	assignments := 0
	o.assign(o.starts(), map[string]int{}, func() bool {
		o.found = slices.Clone(form)
		o.checkAssigned()
		if assignments++; assignments == 1 {
			first = o.found
		}
		return len(o.found) == 0 || assignments == maxAssignments
	})
	if assignments > 0 && len(o.found) == 0 {
		return nil
	}
	return first
}

// checkAssigned checks the facts of all rollouts.
func (o *oracle) checkAssigned() {
	for _, actual := range o.actual {
		o.checkRollout(actual)
	}
	for _, f := range o.starts() {
		if r := o.reported[f.Rollout.ID]; r.actual == nil {
			o.differf("%s did not happen, or in another order", r.id)
		}
	}
	o.checkGaps()
	o.checkDeletions()
	if len(o.state.Waiting) > 0 {
		o.differf("%d views still wait", len(o.state.Waiting))
	}
}

// starts returns the facts of starts.
func (o *oracle) starts() []events.DeployFact {
	return slices.DeleteFunc(slices.Clone(o.facts), func(f events.DeployFact) bool { return f.Fact != events.FactStarted })
}

func (o *oracle) differf(format string, args ...any) {
	o.found = append(o.found, fmt.Sprintf(format, args...))
}

// opposites are the facts of which each ends the state that the other one begins.
var opposites = map[events.Fact]events.Fact{
	events.FactResumed: events.FactPaused, events.FactUnblocked: events.FactBlocked,
	events.FactScaleCompleted: events.FactScaleStarted,
}

// checkForm checks that the facts agree with each other: each has an id and a number of its own, a rollout starts with
// its only started and ends once, and a state begins before it ends.
func (o *oracle) checkForm() {
	ids, ordinals := map[string]bool{}, map[string]int{}
	for i, f := range o.facts {
		about := f.Workload.UID
		if f.Rollout != nil {
			about = f.Rollout.ID
			o.addFact(f)
		}
		if f.Sequence != i+1 {
			o.differf("fact %d has sequence %d", i+1, f.Sequence)
		}
		if id := rollout.ID(f); ids[id] {
			o.differf("%s of %s is published twice", f.Fact, about)
		} else {
			ids[id] = true
		}
		if f.Ordinal > 0 {
			key := string(f.Fact) + " of " + about
			ordinals[key]++
			if f.Ordinal != ordinals[key] {
				o.differf("%s has ordinal %d, want %d", key, f.Ordinal, ordinals[key])
			}
		}
	}
}

// checkOpposites checks that a state begins before it ends, and only once until then.
func (o *oracle) checkOpposites() {
	open := map[string]bool{}
	for _, f := range o.facts {
		about := f.Workload.UID
		if f.Rollout != nil {
			about = f.Rollout.ID
		}
		o.checkOpposite(f, about, open)
	}
}

func (o *oracle) checkOpposite(f events.DeployFact, about string, open map[string]bool) {
	for closing, opening := range opposites {
		key := string(opening) + " of " + about
		switch {
		case f.Fact == opening && open[key], f.Fact == closing && !open[key]:
			o.differf("%s of %s at the wrong time", f.Fact, about)
		case f.Fact == opening:
			open[key] = true
		case f.Fact == closing:
			open[key] = false
		}
	}
}

// addFact adds a fact to its rollout.
func (o *oracle) addFact(f events.DeployFact) {
	r := o.reported[f.Rollout.ID]
	switch {
	case r == nil:
		if f.Fact != events.FactStarted {
			o.differf("the first fact of %s is %s", f.Rollout.ID, f.Fact)
		}
		for _, other := range o.reported {
			if other.uid == f.Workload.UID && other.end().Fact == "" {
				o.differf("%s starts before the end of %s", f.Rollout.ID, other.id)
			}
		}
		r = &reportedRollout{id: f.Rollout.ID, uid: f.Workload.UID}
		o.reported[r.id] = r
	case f.Fact == events.FactStarted:
		o.differf("%s started twice", r.id)
	case r.end().Fact != "" && (f.Fact != events.FactDrained || r.end().Fact != events.FactCompleted):
		o.differf("%s of %s after its end", f.Fact, r.id)
	}
	r.facts = append(r.facts, f)
}

// assign assigns simulated rollouts to the reported ones, in the order of starts, and calls check. next has the first
// simulated rollout that may be assigned, by UID. It tries other assignments until check returns true.
func (o *oracle) assign(starts []events.DeployFact, next map[string]int, check func() bool) bool {
	if len(starts) == 0 {
		return check()
	}
	f := starts[0]
	r, uid, from := o.reported[f.Rollout.ID], f.Workload.UID, next[f.Workload.UID]
	candidates := o.candidates(f, from)
	for _, i := range candidates {
		r.actual, o.actual[i].reported, next[uid] = o.actual[i], r, i+1
		if o.assign(starts[1:], next, check) {
			return true
		}
		r.actual, o.actual[i].reported, next[uid] = nil, nil, from
	}
	return len(candidates) == 0 && o.assign(starts[1:], next, check)
}

// candidates returns the indexes of the simulated rollouts that the start may report, the likeliest first.
func (o *oracle) candidates(f events.DeployFact, from int) []int {
	var same, like []int
	for i := from; i < len(o.actual); i++ {
		switch actual := o.actual[i]; {
		case actual.isOf(f):
			same = append(same, i)
		case o.lostNumbers[f.Workload.UID] && actual.isLike(f):
			like = append(like, i)
		}
	}
	if !o.deletedByHand[f.Workload.UID] && len(same) > 1 {
		return same[:1]
	}
	return append(same, like...)
}

// isOf reports whether the start may be that of the simulated rollout. The id of a Deployment's rollout may end with
// how many numbers were reused so far, which is not compared.
func (a *actualRollout) isOf(f events.DeployFact) bool {
	rest, ok := strings.CutPrefix(f.Rollout.ID, a.id)
	return ok && (rest == "" || strings.HasPrefix(rest, "/e")) && !a.written.After(f.ObservedAt)
}

// isLike reports whether the start may be that of the simulated rollout, if its number may be another one.
func (a *actualRollout) isLike(f events.DeployFact) bool {
	return uidOf(a.id) == f.Workload.UID && a.tpl.hash() == f.Rollout.TemplateHash && !a.written.After(f.ObservedAt)
}

// checkRollout checks the facts of one simulated rollout.
func (o *oracle) checkRollout(actual *actualRollout) {
	r := actual.reported
	if r == nil {
		o.checkUnreported(actual)
		return
	}
	o.checkStart(r)
	o.checkEnd(r)
	for _, f := range r.facts {
		if f.Rollout.Revision != actual.revision && !o.lostNumbers[r.uid] {
			o.differf("%s of %s names revision %d", f.Fact, r.id, f.Rollout.Revision)
		}
		if images := f.Rollout.Images; len(images) > 0 && images[0].Image != actual.tpl.image {
			o.differf("%s of %s names image %s, want %s", f.Fact, r.id, images[0].Image, actual.tpl.image)
		}
	}
}

// checkStart checks when the rollout started, and what it changes.
func (o *oracle) checkStart(r *reportedRollout) {
	f, actual := r.facts[0], r.actual
	if f.Rollout.TemplateHash != "" && f.Rollout.TemplateHash != actual.tpl.hash() {
		o.differf("%s has template %s, want %s", r.id, f.Rollout.TemplateHash, actual.tpl.hash())
	}
	isLate := f.Provenance == events.ProvenanceObserved && f.ObservedAt.After(actual.observable()) &&
		!o.lostNumbers[r.uid]
	if f.ObservedAt.Before(actual.written) || isLate {
		o.differf("%s is observed at %s, want %s", r.id, f.ObservedAt, actual.started)
	}
	if at := *f.Rollout.StartedAt; f.Provenance == events.ProvenanceObserved && !o.lostNumbers[r.uid] &&
		(at.After(actual.written) && at.After(actual.observable()) || at.Before(actual.written)) {
		o.differf("%s started at %s, want %s", r.id, at, actual.started)
	}
	if f.Provenance != events.ProvenanceObserved && len(o.outages) == 0 {
		o.differf("the start of %s is %s", r.id, f.Provenance)
	}
	rolledBack := slices.ContainsFunc(r.facts, func(f events.DeployFact) bool { return f.Fact == events.FactRolledBack })
	if (f.Rollout.Change == events.ChangeRolledBack) != rolledBack || actual.reused && !rolledBack && len(o.outages) == 0 {
		o.differf("%s is %s, rolled_back: %v", r.id, f.Rollout.Change, rolledBack)
	}
}

// checkEnd checks how and when the rollout ended.
func (o *oracle) checkEnd(r *reportedRollout) {
	f, actual := r.end(), r.actual
	if f.Fact == events.FactUnknown {
		if !o.isLost(actual) {
			o.differf("the end of %s is unknown without a gap", r.id)
		}
		return
	}
	want := o.expectedEnd(r)
	if f.Fact != want.fact || isDeletion(f) != want.isDeletion {
		o.differf("the end of %s is %s %s, want %s", r.id, f.Fact, f.Reason, want.fact)
		return
	}
	completed := f.Fact == events.FactCompleted && f.Provenance == events.ProvenanceObserved && !o.lostNumbers[r.uid]
	if (len(o.outages) == 0 || completed) && (f.ObservedAt.Before(want.from) || f.ObservedAt.After(want.until)) {
		o.differf("the end of %s is observed at %s, want %s", r.id, f.ObservedAt, want.until)
	}
	if completed && o.isPausedBy(r) != want.paused {
		o.differf("%s completed, paused: %v", r.id, want.paused)
	}
	if completed && len(o.outages) == 0 && !actual.repeated && len(f.Rollout.Images) == 0 {
		o.differf("%s completed with an unknown template", r.id)
	}
	if c := f.Counts; completed && (c.Updated != c.Desired || c.Available != c.Desired) {
		o.differf("%s completed with %d updated and %d available pods of %d", r.id, c.Updated, c.Available, c.Desired)
	}
}

// isPausedBy reports whether the last fact about a pause of the rollout is that it is paused.
func (o *oracle) isPausedBy(r *reportedRollout) bool {
	paused := false
	for _, f := range r.facts {
		paused = f.Fact == events.FactPaused || paused && f.Fact != events.FactResumed
	}
	return paused
}

// isDeletion reports whether the fact reports the deletion of its workload.
func isDeletion(f events.DeployFact) bool {
	return f.Fact == events.FactRemoved || f.Fact == events.FactCancelled && f.Reason != "RolledBack"
}

// expectedEnd is how a rollout ended, and the earliest and the latest time at which that can be observed.
type expectedEnd struct {
	fact        events.Fact
	isDeletion  bool
	paused      bool
	from, until time.Time
}

// expectedEnd returns how the rollout ended. A rollout that no version of the workload showed may have no facts. The
// next one that has facts then replaces the previous one, or continues it.
func (o *oracle) expectedEnd(r *reportedRollout) expectedEnd {
	last, next := r.actual, (*actualRollout)(nil)
	for _, a := range o.actual[slices.Index(o.actual, r.actual)+1:] {
		if uidOf(a.id) == r.uid && a.reported != nil {
			next = a
			break
		}
		if a.id == last.id && !last.endSeen {
			last = a
		}
	}
	switch deleted := o.deletions[r.uid]; {
	case last.end == events.FactCompleted:
		return expectedEnd{fact: events.FactCompleted, paused: last.paused, from: last.ended, until: last.ended}
	case next == nil && deleted.IsZero():
		return expectedEnd{} // the simulation ended before
	case next == nil:
		return expectedEnd{fact: events.FactCancelled, isDeletion: true, from: deleted, until: deleted}
	}
	if completed := o.lastCompleted(r); completed != nil && completed.tpl == next.tpl {
		return expectedEnd{fact: events.FactCancelled, from: next.written, until: next.observable()}
	}
	return expectedEnd{fact: events.FactSuperseded, from: next.written, until: next.observable()}
}

// lastCompleted returns the last rollout that is reported as completed before the end of this one.
func (o *oracle) lastCompleted(r *reportedRollout) *actualRollout {
	var last *actualRollout
	for _, f := range o.facts[:r.end().Sequence-1] {
		if f.Fact == events.FactCompleted && f.Workload.UID == r.uid {
			last = cmp.Or(o.reported[f.Rollout.ID].actual, last)
		}
	}
	return last
}

// checkUnreported checks that a rollout without facts could not be observed, or is in a gap.
func (o *oracle) checkUnreported(actual *actualRollout) {
	switch uid := uidOf(actual.id); {
	case !actual.visible: // nothing but its own object showed it
	case !o.seen[uid]: // its workload existed only within an outage
	case o.lostNumbers[uid] && (!actual.seen || o.isCovered(actual)): // another ReplicaSet may have its number
	case o.isContinued(actual): // nothing showed what was in between
	case actual.seen:
		o.differf("no facts about %s, which was seen", actual.id)
	case o.isLost(actual), actual.hidden && o.isRemovedAfterGap(actual):
	default:
		o.differf("no facts about %s", actual.id)
	}
}

// isContinued reports whether the rollout is a reported one that was replaced by others which nothing shows. If numbers
// are lost, nothing may show those that the watcher did not see.
func (o *oracle) isContinued(actual *actualRollout) bool {
	for _, a := range slices.Backward(o.actual[:slices.Index(o.actual, actual)]) {
		if a.id == actual.id && (a.reported != nil || o.isContinued(a)) {
			return true
		}
		if a.visible && (a.seen || !o.lostNumbers[uidOf(a.id)]) {
			return false
		}
	}
	return false
}

// isLost reports whether a gap names the revision. After a ReplicaSet was deleted by hand, nothing may show which
// number the unobserved ones had: then the gap only covers its start.
func (o *oracle) isLost(actual *actualRollout) bool {
	return slices.ContainsFunc(o.facts, func(f events.DeployFact) bool {
		if f.Fact != events.FactGap || f.Workload.UID != uidOf(actual.id) || f.Gap.Until.Before(actual.started) {
			return false
		}
		if o.lostNumbers[f.Workload.UID] && actual.reported != nil &&
			slices.Contains(f.Gap.Revisions, actual.reported.facts[0].Rollout.Revision) {
			return true
		}
		unnamed := o.deletedByHand[f.Workload.UID] && actual.hidden && !f.Gap.Since.After(actual.started)
		return unnamed || slices.Contains(f.Gap.Revisions, actual.revision)
	})
}

// isCovered reports whether a gap covers the start of the rollout.
func (o *oracle) isCovered(actual *actualRollout) bool {
	return slices.ContainsFunc(o.facts, func(f events.DeployFact) bool {
		return f.Fact == events.FactGap && f.Workload.UID == uidOf(actual.id) && !f.Gap.Since.After(actual.started) &&
			!f.Gap.Until.Before(actual.started)
	})
}

// isRemovedAfterGap reports whether a gap covers the start of the rollout, and the removal of its workload follows.
func (o *oracle) isRemovedAfterGap(actual *actualRollout) bool {
	covered := false
	for _, f := range o.facts {
		switch {
		case f.Workload.UID != uidOf(actual.id):
		case f.Fact == events.FactGap:
			covered = covered || !f.Gap.Since.After(actual.started) && !f.Gap.Until.Before(actual.started)
		case covered && f.Fact == events.FactRemoved:
			return true
		}
	}
	return false
}

// checkGaps checks that each gap overlaps an outage, and names revisions that the workload had then.
func (o *oracle) checkGaps() {
	for _, f := range o.facts {
		if f.Gap == nil {
			continue
		}
		overlaps := func(from, until time.Time) bool {
			return !f.Gap.Since.After(until) && (from.Before(f.Gap.Until) || from.Equal(f.Gap.Until))
		}
		if !slices.ContainsFunc(o.outages, func(out outage) bool { return overlaps(out.from, out.until) }) {
			o.differf("%s %v since %s until %s is not in an outage", f.Fact, f.Gap.Revisions, f.Gap.Since, f.Gap.Until)
		}
		for _, revision := range f.Gap.Revisions {
			if !slices.ContainsFunc(o.actual, func(a *actualRollout) bool {
				return uidOf(a.id) == f.Workload.UID && (a.revision == revision || slices.Contains(a.numbers, revision)) &&
					(overlaps(a.started, o.lastsUntil(a)) || o.lostNumbers[f.Workload.UID])
			}) {
				o.differf("%s names revision %d, which the workload did not have then", f.Fact, revision)
			}
		}
	}
}

// lastsUntil returns when the revision was replaced or deleted.
func (o *oracle) lastsUntil(actual *actualRollout) time.Time {
	uid := uidOf(actual.id)
	for _, a := range o.actual[slices.Index(o.actual, actual)+1:] {
		if uidOf(a.id) == uid {
			return a.started
		}
	}
	if at, deleted := o.deletions[uid]; deleted {
		return at
	}
	return o.now
}

// checkDeletions checks that the deletion of each observed workload is reported once, after all other facts about it.
func (o *oracle) checkDeletions() {
	removed := map[string]bool{}
	for _, f := range o.facts {
		uid := f.Workload.UID
		if removed[uid] {
			o.differf("%s of %s after its removal", f.Fact, uid)
		}
		removed[uid] = isDeletion(f)
	}
	for uid := range o.seen {
		if _, deleted := o.deletions[uid]; deleted != removed[uid] {
			o.differf("%s is deleted: %v, removed: %v", uid, deleted, removed[uid])
		}
	}
}
