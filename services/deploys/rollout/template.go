package rollout

import (
	"slices"
	"time"
)

// The name of a ReplicaSet is a hash of its template, so both identify each other for ever. Its revision number does
// not identify it once ReplicaSets were deleted by hand: another one may get the number. So a view shows a ReplicaSet
// if it shows its template.

// NamedTemplate is the template of a ReplicaSet.
type NamedTemplate struct {
	Name     string   `json:"name"`
	Template Template `json:"template"`
}

// learnFromView learns which ReplicaSet has the view's template. The controller writes a message that names the newest
// ReplicaSet only into the version that it has observed.
func (p *step) learnFromView(v View) {
	s := &p.s
	before := s.View
	if n := len(s.Waiting); n > 0 {
		before = &s.Waiting[n-1]
	}
	name := v.Progress.object()
	if s.Key.Kind != Deployment || before == nil || before.UID != v.UID || v.afterGap() || !v.isObserved() ||
		name == s.Key.Name || v.Progress.Reason == reasonCreateError || before.Progress.Message == v.Progress.Message {
		return
	}
	p.learn(name, v.Template)
}

// learn records the template of a ReplicaSet.
func (p *step) learn(name string, t Template) {
	s := &p.s
	if s.Key.Kind != Deployment || name == "" || !t.known() || slices.ContainsFunc(s.Named, func(n NamedTemplate) bool {
		return n.Name == name && n.Template.equals(t)
	}) {
		return
	}
	named := make([]NamedTemplate, 0, len(s.Named)+1)
	for _, n := range s.Named {
		if n.Name != name && !n.Template.equals(t) {
			named = append(named, n)
		}
	}
	t.ChangedAt, t.SeenAt, t.SeenPaused = time.Time{}, time.Time{}, false
	named = append(named, NamedTemplate{Name: name, Template: t})
	s.Named = named[max(0, len(named)-maxNamed):]
	if name == s.Name && !t.equals(s.Template) {
		s.Template = t
	}
}

// templateNamed returns the template of the ReplicaSet with that name; the zero value if it is unknown. It does not say
// when the template was written.
func (p *step) templateNamed(name string) Template {
	s := &p.s
	if s.Key.Kind != Deployment || name == "" {
		return Template{}
	}
	for _, n := range s.Named {
		if n.Name == name {
			return n.Template
		}
	}
	return Template{}
}

// nameOf returns the name of the ReplicaSet with that template; empty if it is unknown.
func (p *step) nameOf(t Template) string {
	for _, n := range p.s.Named {
		if n.Template.equals(t) {
			return n.Name
		}
	}
	return ""
}

// mayShow reports whether the view may show that the ReplicaSet with that name is the newest one.
func (p *step) mayShow(v View, name string) bool {
	if !p.showsReplicaSet(v) {
		return true
	}
	t := p.templateNamed(name)
	if name == p.s.Name && p.s.Template.known() {
		t = p.s.Template
	}
	if t.known() {
		return t.equals(v.Template)
	}
	named := p.nameOf(v.Template)
	return named == "" || named == name
}

// isShown reports whether the view shows that the ReplicaSet with that name is the newest one.
func (p *step) isShown(v View, name string) bool {
	return p.showsReplicaSet(v) && p.templateNamed(name).equals(v.Template)
}

// showsReplicaSet reports whether a ReplicaSet with the view's template exists and is the newest one. While a
// Deployment is paused, its controller only reuses ReplicaSets. With strategy Recreate, it first deletes the old pods.
func (p *step) showsReplicaSet(v View) bool {
	switch {
	case p.s.Key.Kind != Deployment, !v.Template.known():
		return false
	case p.isRenumbered(v):
		return true
	case !v.isObserved():
		return false
	case v.Counts.Updated > 0:
		return true
	case v.afterGap(), v.UID == p.s.UID && v.Generation <= p.s.Generation:
		return false
	case v.Paused:
		return p.nameOf(v.Template) != ""
	default:
		return v.Strategy != recreate || v.Counts.Desired == 0
	}
}

// isRenumbered reports whether the view is the first one with its revision number. The controller writes the number
// only into the version that has the template of its ReplicaSet.
func (p *step) isRenumbered(v View) bool {
	before := p.s.View
	return before != nil && before.UID == v.UID && before.Revision != v.Revision && !v.afterGap()
}

// isOlder reports whether the revision got its number before the workload had the template that the view shows.
func (p *step) isOlder(k Pending, v View) bool {
	if k.Listed || !p.showsReplicaSet(v) {
		return false
	}
	at := slices.IndexFunc(p.s.Templates, func(seen SeenTemplate) bool { return seen.Template.equals(v.Template) })
	if at < 0 || len(p.s.Templates) == maxTemplates {
		return false
	}
	since := p.s.Templates[at].Version
	return compareVersions(k.Version, since) < 0 && compareVersions(since, v.Version) < 0
}

// templateOf returns the template of a revision; the zero value if it is unknown. The first version of a Deployment
// with the revision number also has its template. The status of a StatefulSet contains the generation that it
// describes.
func (p *step) templateOf(k Pending, v View, newest bool) Template {
	s, name := &p.s, k.Name
	named, owner := p.templateNamed(name), p.nameOf(v.Template)
	afterGap := v.afterGap() || p.reapplied || k.Listed && s.Key.Kind == Deployment
	switch {
	case newest && named.known() && named.equals(v.Template):
		return v.Template
	case named.known():
		return named
	case newest && owner != "" && owner != name:
		return Template{} // it is that of another ReplicaSet
	case !newest && afterGap:
		return Template{}
	case !newest:
		return p.skippedTemplate(k, v)
	case afterGap && s.Key.Kind != DaemonSet && !p.showsTemplate(name, v):
		return Template{} // the template may be a newer one
	case v.isObserved() || s.Key.Kind == DaemonSet:
		return v.Template
	case s.Key.Kind == Deployment && (s.View == nil || s.View.Revision != v.Revision || v.Progress.names(name)):
		return v.Template
	default:
		return p.templateAt(v.Observed)
	}
}

// showsTemplate reports whether a view after a period without observations has the template of its newest revision. An
// edit that the controller has not observed is newer. A paused Deployment, or one that first deletes its old pods, has
// a template without a ReplicaSet. A reused ReplicaSet gets its number before the Deployment has it.
func (p *step) showsTemplate(name string, v View) bool {
	if !v.isObserved() || p.s.Key.Kind != Deployment {
		return v.isObserved()
	}
	later := slices.ContainsFunc(p.s.Pending, func(k Pending) bool {
		return k.WorkloadUID == v.UID && k.Revision > v.Revision
	})
	if later || v.Paused {
		return false
	}
	switch c := v.Progress; {
	case v.Counts.Desired == 0: // the condition may still name an earlier ReplicaSet
		return !p.hasUnknownTemplate(name)
	case v.Counts.Updated > 0:
		return c.Status == "" || c.names(name)
	default:
		return c.names(name) && c.Reason != reasonAvailable && v.Strategy != recreate
	}
}

// hasUnknownTemplate reports whether a ReplicaSet other than the named one has an unknown template.
func (p *step) hasUnknownTemplate(name string) bool {
	return slices.ContainsFunc(p.s.Revisions, func(r Revision) bool {
		return r.WorkloadUID == p.s.UID && r.Name != name && !r.Deleted && !p.templateNamed(r.Name).known()
	})
}

// recordTemplate records the template of the view and since when the workload has it unpaused.
func (p *step) recordTemplate(v *View) {
	s := &p.s
	if !v.Template.known() {
		return
	}
	n := len(s.Templates)
	mayHaveLeft := v.afterGap() && s.View != nil && v.Generation > s.View.Generation // and may have returned to it
	if n > 0 && s.Templates[n-1].Template.equals(v.Template) && !mayHaveLeft {
		last := &s.Templates[n-1].Template
		if last.SeenAt.IsZero() && !v.Template.SeenAt.IsZero() {
			s.Templates = slices.Clone(s.Templates)
			last = &s.Templates[n-1].Template
			last.SeenAt = v.Template.SeenAt
		}
		v.Template.SeenAt, v.Template.SeenPaused = last.SeenAt, last.SeenPaused
		return
	}
	seen := SeenTemplate{Generation: v.Generation, Template: v.Template}
	switch {
	case !v.afterGap():
		seen.Version = v.Version
	case s.View != nil && s.View.UID == v.UID:
		seen.Version = s.View.Version
	}
	s.Templates = append(s.Templates, seen)
	s.Templates = s.Templates[max(0, len(s.Templates)-maxTemplates):]
}

// templateAt returns the observed template of a generation.
func (p *step) templateAt(generation int) Template {
	var at Template
	for _, seen := range p.s.Templates {
		if seen.Generation <= generation {
			at = seen.Template
		}
	}
	return at
}

// skippedTemplate returns the template of a revision between the last processed one and the newest; the zero value if
// it is unknown. It is that of an earlier rollout of the same object, or the only one that was observed in between and
// before the object got its number.
func (p *step) skippedTemplate(k Pending, v View) Template {
	s, name := &p.s, k.Name
	for _, c := range slices.Backward(s.Completed) {
		if c.Name == name && c.Template.known() {
			return c.Template
		}
	}
	if k.Listed {
		return Template{} // it may be one that was not observed
	}
	var only Template
	for _, seen := range s.Templates {
		t := seen.Template
		owner := p.nameOf(t)
		if seen.Generation <= s.Generation || seen.Generation > v.Generation || t.equals(v.Template) ||
			t.equals(s.Template) || t.equals(only) || owner != "" && owner != name ||
			compareVersions(seen.Version, k.Version) > 0 {
			continue
		}
		if only.known() {
			return Template{}
		}
		only = t
	}
	return only
}
