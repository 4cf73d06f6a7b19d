package policy

import (
	"cmp"
	"maps"
	"slices"

	"lockstep.internal/services/admission/payload"
)

// ref names a user, group or project by its id, or by its login or path.
type ref struct {
	id   int64
	name string
}

func (r ref) is(id int64, name string) bool {
	if r.id != 0 {
		return r.id == id
	}
	return r.name == name
}

// entry is an entry of a list. It selects a job that has one of each kind that it names.
type entry struct {
	users, projects []ref
	// groups contain the project; the user is a member of memberOf.
	groups, memberOf    []ref
	runners             []int64
	addTags, removeTags []string
	reason              string
}

func (e *entry) selects(in Input) bool {
	one := func(refs []ref, id int64, name string) bool {
		return len(refs) == 0 || slices.ContainsFunc(refs, func(r ref) bool { return r.is(id, name) })
	}
	oneOf := func(refs []ref, groups []Group) bool {
		return len(refs) == 0 || slices.ContainsFunc(groups, func(g Group) bool { return one(refs, g.ID, g.Path) })
	}
	return one(e.users, in.User.ID, in.User.Login) && one(e.projects, in.Project.ID, in.Project.Path) &&
		oneOf(e.groups, in.Groups) && oneOf(e.memberOf, in.User.Groups)
}

// lists are the lists of a policy.
type lists struct{ deny, allow, redirect []entry }

// apply applies the lists to a decision.
func (l lists) apply(d *decision, in Input) {
	for i := range l.deny {
		e := &l.deny[i]
		if !e.selects(in) {
			continue
		}
		if len(e.runners) == 0 {
			d.reject(cmp.Or(e.reason, "the policy denies the job"))
			return
		}
		d.rejectRunners(e.runners, e.reason)
	}
	l.applyAllow(d, in)
	for i := range l.redirect {
		if e := &l.redirect[i]; !d.rejected && e.selects(in) {
			d.changeTags(e.addTags, e.removeTags)
			if len(e.runners) > 0 {
				d.acceptRunners(e.runners)
			}
			d.addReason(e.reason)
		}
	}
}

// applyAllow rejects a job that no entry without runners selects, if there are such entries. A runner that entries name
// is for the jobs that one of them selects.
func (l lists) applyAllow(d *decision, in Input) {
	listed, required, reason := false, false, ""
	restricted, open := map[int64]string{}, map[int64]bool{}
	for i := range l.allow {
		e := &l.allow[i]
		selected := e.selects(in)
		if len(e.runners) == 0 {
			required, listed, reason = true, listed || selected, cmp.Or(reason, e.reason)
		}
		for _, id := range e.runners {
			restricted[id] = cmp.Or(restricted[id], e.reason)
			open[id] = open[id] || selected
		}
	}
	if d.rejected {
		return
	}
	if required && !listed {
		d.reject(cmp.Or(reason, "the policy does not allow the job"))
		return
	}
	for _, id := range slices.Sorted(maps.Keys(restricted)) {
		if !open[id] {
			d.rejectRunners([]int64{id}, restricted[id])
		}
	}
}

// decision collects what a policy decides.
type decision struct {
	jobID    int64
	rejected bool

	addTags, removeTags []string
	// accepted is nil for no restriction.
	accepted map[int64]bool
	refused  map[int64]bool
	reasons  []string
	// refusals are the reasons why runners are refused.
	refusals []string
}

func (d *decision) reject(reason string) {
	d.rejected = true
	d.reasons = []string{reason}
}

func (d *decision) addReason(reason string) {
	if reason != "" && !slices.Contains(d.reasons, reason) {
		d.reasons = append(d.reasons, reason)
	}
}

// changeTags changes tags. The last change of a tag counts.
func (d *decision) changeTags(add, remove []string) {
	drop := func(list, items []string) []string {
		return slices.DeleteFunc(list, func(tag string) bool { return slices.Contains(items, tag) })
	}
	d.removeTags = append(drop(d.removeTags, slices.Concat(add, remove)), remove...)
	d.addTags = append(drop(d.addTags, slices.Concat(add, remove)), add...)
}

func (d *decision) acceptRunners(ids []int64) {
	common := map[int64]bool{}
	for _, id := range ids {
		if d.accepted == nil || d.accepted[id] {
			common[id] = true
		}
	}
	d.accepted = common
}

func (d *decision) rejectRunners(ids []int64, reason string) {
	if d.refused == nil {
		d.refused = map[int64]bool{}
	}
	for _, id := range ids {
		d.refused[id] = true
	}
	if reason != "" && !slices.Contains(d.refusals, reason) {
		d.refusals = append(d.refusals, reason)
	}
}

// answer returns the decision as a controller sends it.
func (d *decision) answer(runners []Runner) payload.Answer {
	if !d.rejected {
		accepted := sortedKeys(d.accepted)
		accepted = slices.DeleteFunc(accepted, func(id int64) bool { return d.refused[id] })
		none := len(runners) > 0 && !slices.ContainsFunc(runners, func(r Runner) bool {
			return !d.refused[r.ID] && (d.accepted == nil || d.accepted[r.ID])
		})
		if !none && (d.accepted == nil || len(accepted) > 0) {
			for _, reason := range d.refusals {
				d.addReason(reason)
			}
			return payload.Answer{
				JobID: d.jobID, Accepted: true, AddTags: d.addTags, RemoveTags: d.removeTags,
				AcceptRunners: accepted, RejectRunners: sortedKeys(d.refused), Reason: d.reason(),
			}
		}
		reasons := d.refusals
		if len(reasons) == 0 {
			reasons = d.reasons
		}
		d.reasons = append([]string{"the policy allows no runner for the job"}, reasons...)
	}
	return payload.Answer{JobID: d.jobID, Reason: d.reason()}
}
