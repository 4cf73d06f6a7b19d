package environment

import (
	"cmp"
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// Advance applies one input and returns the new state and the facts, numbered by the state's sequence. The workload of
// a fact has kind group and the name of the environment. If the input changes nothing, Advance returns the same state
// with the same serial.
func (r Rules) Advance(s State, in Input) (State, []events.DeployFact) {
	at := in.ObservedAt.UTC().Round(0)
	if in.Member == nil && (s.WakeAt.IsZero() || at.Before(s.WakeAt)) {
		return s, nil
	}
	p := &step{s: s.clone(), at: at, settle: r.settle()}
	if in.Member != nil {
		if !p.update(*in.Member) {
			return s, nil
		}
		p.s.AgentID = in.AgentID
	}
	p.evaluate()
	p.s.Serial++
	return p.s, p.facts
}

// step is one application of an input.
type step struct {
	s             State
	facts         []events.DeployFact
	at            time.Time
	settle        time.Duration
	reconstructed bool
}

// update applies the state of a member. It returns false if nothing changed.
func (p *step) update(m Member) bool {
	s := &p.s
	p.reconstructed = m.Reconstructed
	at, known := slices.BinarySearchFunc(s.Members, m, func(a, b Member) int { return compare(a.Workload, b.Workload) })
	if m.State == "" {
		if !known {
			return false
		}
		if len(s.Members) == 1 && s.Run != "" && !m.Unselected {
			p.publish(events.FactEnvironmentRemoved, "Removed", "its last workload was deleted", false)
		}
		s.Members = slices.Delete(s.Members, at, at+1)
		p.changed()
		if len(s.Members) == 0 {
			s.Members = nil
			if !m.Unselected { // an unselected workload may return unchanged
				s.Run, s.Phase = "", ""
			}
		}
		return true
	}
	var before *Member
	switch {
	case known && m.same(s.Members[at]):
		return false
	case known:
		before = &Member{Commit: s.Members[at].Commit}
		s.Members[at] = m
	case len(s.Members) >= maxMembers:
		return false
	default:
		s.Members = slices.Insert(s.Members, at, m)
	}
	p.changed()
	p.startRun(m, before)
	return true
}

// changed records the time of a change. Agents have different clocks, so it never goes back.
func (p *step) changed() {
	if p.at.After(p.s.ChangedAt) {
		p.s.ChangedAt = p.at
	}
}

func compare(a, b rollout.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// startRun starts a run when a member has a new commit. Without commits, it starts a run when a member of a complete
// environment starts a rollout. before is the previous state of the member, nil for a new one.
func (p *step) startRun(m Member, before *Member) {
	s := &p.s
	isBaseline := m.State == rollout.Completed && m.RolloutID == "" // complete at the first observation
	switch {
	case s.Run == "" && isBaseline, s.Phase == baseline && isBaseline && before == nil:
		if s.Run == "" || !s.hasMemberOf(s.Run) {
			s.Run = p.runName(m)
		}
		s.Phase = baseline
		return
	case m.Commit != "" && m.Commit != s.Run && p.isNewCommit(m, before):
		s.Run = m.Commit
	case s.Run == "":
		s.Run = p.runName(m)
	case m.State == rollout.Running && (s.Phase == baseline || before == nil && len(s.Members) == 1):
		if !s.hasCommit() {
			s.Run = s.digest()
		}
	case m.State == rollout.Running && (s.Phase == ready || !isDigest(s.Run)) && !s.hasCommit() && s.digest() != s.Run:
		s.Run = s.digest()
	default:
		return
	}
	s.Phase, s.StartedAt = started, p.at
	p.publish(events.FactEnvironmentStarted, "", "", false)
}

// runName returns the name of a run that a member starts.
func (p *step) runName(m Member) string {
	if m.Commit != "" {
		return m.Commit
	}
	return p.s.digest()
}

// isNewCommit reports whether the commit of the member is new to the environment. The commit of a new member is not new
// if another member has it.
func (p *step) isNewCommit(m Member, before *Member) bool {
	if before != nil {
		return m.Commit != before.Commit
	}
	return !slices.ContainsFunc(p.s.Members, func(o Member) bool {
		return o.Workload != m.Workload && o.Commit == m.Commit
	})
}

// evaluate decides whether the run failed or is ready.
func (p *step) evaluate() {
	s := &p.s
	s.WakeAt = time.Time{}
	if s.Phase != started && s.Phase != failed {
		if s.Phase == ready && !s.hasCommit() && s.all(rollout.Completed) {
			s.Run = s.digest() // the images of the completed run
		}
		return
	}
	if !isDigest(s.Run) && !s.hasMemberOf(s.Run) {
		return // all workloads of the run were deleted
	}
	if at := s.failedMember(); at >= 0 {
		inRun := s.inRun(s.Members[at])
		if s.Phase == started && (inRun || p.settled()) {
			s.Phase = failed
			p.publish(events.FactEnvironmentFailed, "MemberFailed", s.Members[at].explanation(), !inRun)
		}
		return
	}
	if !s.all(rollout.Completed) || !s.allPresent() {
		return
	}
	complete := s.expected() > 0 && s.sameCommit()
	if !complete && !p.settled() {
		return
	}
	s.Phase = ready
	p.publish(events.FactEnvironmentReady, "", "", !complete)
	if !s.hasCommit() {
		s.Run = s.digest()
	}
}

// settled reports whether nothing changed during the settle time. Otherwise it sets WakeAt to the end of the settle
// time.
func (p *step) settled() bool {
	s := &p.s
	if !p.at.Before(s.ChangedAt.Add(p.settle)) {
		return true
	}
	s.WakeAt = s.ChangedAt.Add(p.settle)
	return false
}

func (p *step) publish(fact events.Fact, reason, message string, settled bool) {
	s := &p.s
	s.Sequence++
	f := events.DeployFact{
		Fact: fact, Sequence: s.Sequence, OccurredAt: p.at, ObservedAt: p.at, TimeSource: events.TimeSourceObservation,
		Provenance: events.ProvenanceObserved, Reason: reason, Message: message,
		Workload: events.Workload{
			ClusterUID: s.Key.ClusterUID, AgentID: int(s.AgentID), Namespace: s.Key.Namespace, Kind: Kind, Name: s.Key.Name,
			Labels:      p.merged(func(m Member) map[string]string { return m.Labels }),
			Annotations: p.merged(func(m Member) map[string]string { return m.Annotations }),
		},
		Environment: &events.Environment{Group: s.Key.Name, Run: s.Run, Expected: s.expected(), Settled: settled},
	}
	if p.reconstructed {
		f.Provenance = events.ProvenanceReconstructed
	}
	f.Environment.Url = WebURL(f.Workload.Annotations[AnnotationURL])
	for _, m := range s.Members {
		f.Environment.Members = append(f.Environment.Members, events.Member{
			Namespace: m.Workload.Namespace,
			Kind:      m.Workload.Kind,
			Name:      m.Workload.Name,
			RolloutID: m.RolloutID,
			State:     m.State,
		})
	}
	if fact == events.FactEnvironmentReady || fact == events.FactEnvironmentFailed {
		took := int(max(0, p.at.Sub(s.StartedAt).Milliseconds()))
		f.DurationMs = &took
	}
	p.facts = append(p.facts, f)
}

// merged merges the maps of the members. The first value of a name is used. Members of the run come first.
func (p *step) merged(values func(Member) map[string]string) map[string]string {
	all := map[string]string{}
	for _, inRun := range []bool{true, false} {
		for _, m := range p.s.Members {
			if (m.Commit == p.s.Run) != inRun {
				continue
			}
			for name, value := range values(m) {
				if _, known := all[name]; !known {
					all[name] = value
				}
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
