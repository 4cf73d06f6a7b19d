package environment

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// Advance takes one input into account and gives the facts that follow from it, numbered by the
// state's sequence. Their workload has kind group and the environment's name. Where nothing was
// learnt the state is given back as it is, with the same serial.
func (r Rules) Advance(s State, in Input) (State, []events.DeployFact) {
	at := in.ObservedAt.UTC().Round(0)
	if in.Member == nil && (s.WakeAt.IsZero() || at.Before(s.WakeAt)) {
		return s, nil
	}
	p := &step{s: s.clone(), at: at, settle: r.settle()}
	if in.Member != nil {
		if !p.hear(*in.Member) {
			return s, nil
		}
		p.s.AgentID = in.AgentID
	}
	p.judge()
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

// hear of a member, and say whether it was news.
func (p *step) hear(m Member) bool {
	s := &p.s
	p.reconstructed = m.Reconstructed
	at, known := slices.BinarySearchFunc(s.Members, m, func(a, b Member) int { return compare(a.Workload, b.Workload) })
	if m.State == "" {
		if !known {
			return false
		}
		if len(s.Members) == 1 && s.Run != "" && !m.Unselected {
			p.tell(events.FactEnvironmentRemoved, "Removed", "the last workload of it was deleted", false)
		}
		s.Members = slices.Delete(s.Members, at, at+1)
		p.news()
		if len(s.Members) == 0 {
			s.Members = nil
			if !m.Unselected { // or it is no news when it comes back as it is
				s.Run, s.Told = "", ""
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
	p.news()
	p.run(m, before)
	return true
}

// news was heard. Clocks of two agents differ.
func (p *step) news() {
	if p.at.After(p.s.NewsAt) {
		p.s.NewsAt = p.at
	}
}

func compare(a, b rollout.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// run begins when a member comes with a commit of its own, or, where none has one, when a member of
// a whole environment begins a rollout. Before is the member as it was, nil for a new one.
func (p *step) run(m Member, before *Member) {
	s := &p.s
	atRest := m.State == rollout.Completed && m.RolloutID == "" // it was there before anybody looked
	switch {
	case s.Run == "" && atRest, s.Told == silent && atRest && before == nil:
		if s.Run == "" || !s.named(s.Run) {
			s.Run = p.name(m)
		}
		s.Told = silent
		return
	case m.Commit != "" && m.Commit != s.Run && p.fresh(m, before):
		s.Run = m.Commit
	case s.Run == "":
		s.Run = p.name(m)
	case m.State == rollout.Running && (s.Told == silent || before == nil && len(s.Members) == 1):
		if !s.commits() {
			s.Run = s.digest()
		}
	case m.State == rollout.Running && (s.Told == ready || !ofImages(s.Run)) && !s.commits() && s.digest() != s.Run:
		s.Run = s.digest()
	default:
		return
	}
	s.Told, s.SeenAt = started, p.at
	p.tell(events.FactEnvironmentStarted, "", "", false)
}

// name of a run that a member begins.
func (p *step) name(m Member) string {
	if m.Commit != "" {
		return m.Commit
	}
	return p.s.digest()
}

// fresh says that the member came to its commit now. A new one that comes with what others are
// about to leave does not bring it back.
func (p *step) fresh(m Member, before *Member) bool {
	if before != nil {
		return m.Commit != before.Commit
	}
	return !slices.ContainsFunc(p.s.Members, func(o Member) bool { return o.Workload != m.Workload && o.Commit == m.Commit })
}

// judge the run.
func (p *step) judge() {
	s := &p.s
	s.WakeAt = time.Time{}
	if s.Told != started && s.Told != failed {
		if s.Told == ready && !s.commits() && s.all(rollout.Completed) {
			s.Run = s.digest() // what it came to
		}
		return
	}
	if !ofImages(s.Run) && !s.named(s.Run) {
		return // the workloads that it was for are gone
	}
	if at := s.failed(); at >= 0 {
		ours := s.ours(s.Members[at])
		if s.Told == started && (ours || p.settled()) {
			s.Told = failed
			w := s.Members[at].Workload
			p.tell(events.FactEnvironmentFailed, "MemberFailed", w.Kind+" "+w.Name+" does not come to its end", !ours)
		}
		return
	}
	if !s.all(rollout.Completed) || !s.assembled() {
		return
	}
	whole := s.expected() > 0 && s.arrived()
	if !whole && !p.settled() {
		return
	}
	s.Told = ready
	p.tell(events.FactEnvironmentReady, "", "", !whole)
	if !s.commits() {
		s.Run = s.digest()
	}
}

// settled says that nothing was heard for a while, and wakes when that may be.
func (p *step) settled() bool {
	s := &p.s
	if !p.at.Before(s.NewsAt.Add(p.settle)) {
		return true
	}
	s.WakeAt = s.NewsAt.Add(p.settle)
	return false
}

func (p *step) tell(fact events.Fact, reason, message string, settled bool) {
	s := &p.s
	s.Sequence++
	f := events.DeployFact{
		Fact: fact, Sequence: s.Sequence, OccurredAt: p.at, ObservedAt: p.at, TimeSource: events.TimeSourceObservation,
		Provenance: events.ProvenanceObserved, Reason: reason, Message: message,
		Workload: events.Workload{
			ClusterUID: s.Key.ClusterUID, AgentID: int(s.AgentID), Namespace: s.Key.Namespace, Kind: Kind, Name: s.Key.Name,
			Labels: p.merged(func(m Member) map[string]string { return m.Labels }), Annotations: p.merged(func(m Member) map[string]string { return m.Annotations }),
		},
		Environment: &events.Environment{Group: s.Key.Name, Run: s.Run, Expected: s.expected(), Settled: settled},
	}
	if p.reconstructed {
		f.Provenance = events.ProvenanceReconstructed
	}
	f.Environment.Url = f.Workload.Annotations[AnnotationURL]
	for _, m := range s.Members {
		f.Environment.Members = append(f.Environment.Members, events.Member{
			Namespace: m.Workload.Namespace, Kind: m.Workload.Kind, Name: m.Workload.Name, RolloutID: m.RolloutID, State: m.State,
		})
	}
	if fact == events.FactEnvironmentReady || fact == events.FactEnvironmentFailed {
		took := int(max(0, p.at.Sub(s.SeenAt).Milliseconds()))
		f.DurationMs = &took
	}
	p.facts = append(p.facts, f)
}

// merged maps of the members, those of the run before those of others, and the first of each name.
func (p *step) merged(of func(Member) map[string]string) map[string]string {
	all := map[string]string{}
	for _, ours := range []bool{true, false} {
		for _, m := range p.s.Members {
			if (m.Commit == p.s.Run) != ours {
				continue
			}
			for name, value := range of(m) {
				if _, there := all[name]; !there {
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
