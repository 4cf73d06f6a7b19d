package environment

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// Advance takes one input into account and gives the facts that follow from it, numbered by the state's sequence. Their workload has kind group and
// the environment's name. Where nothing was learnt the state is given back as it is, with the same serial.
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
		s.NewsAt = p.at
		if len(s.Members) == 0 {
			s.Members, s.Run, s.Told = nil, "", ""
		}
		return true
	}
	commit := ""
	switch {
	case known:
		commit = s.Members[at].Commit
		s.Members[at] = m
	case len(s.Members) >= maxMembers:
		return false
	default:
		s.Members = slices.Insert(s.Members, at, m)
	}
	s.NewsAt = p.at
	p.run(m, commit)
	return true
}

func compare(a, b rollout.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// run begins when a member comes with a commit of its own, or, where none has one, when a member of a whole environment begins a rollout.
func (p *step) run(m Member, commit string) {
	s := &p.s
	switch {
	case m.Commit != "" && m.Commit != commit && m.Commit != s.Run:
		if s.Run == "" && m.State == rollout.Completed && m.RolloutID == "" {
			s.Run, s.Told = m.Commit, silent
			return
		}
		if s.Told == silent && m.State == rollout.Completed && m.RolloutID == "" && commit == "" {
			return // another one that was there before
		}
		s.Run = m.Commit
	case m.Commit == "" && s.Run == "" && m.State == rollout.Completed && m.RolloutID == "":
		s.Run, s.Told = s.digest(), silent
		return
	case m.State == rollout.Running && s.Told == silent:
		if m.Commit == "" {
			s.Run = s.digest()
		}
	case m.State == rollout.Running && m.Commit == "" && (s.Run == "" || s.Told == ready && s.digest() != s.Run):
		s.Run = s.digest()
	default:
		return
	}
	s.Told, s.SeenAt = started, p.at
	p.tell(events.FactEnvironmentStarted, "", "", false)
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
	if at := slices.IndexFunc(s.Members, func(m Member) bool { return m.State == rollout.Failed }); at >= 0 {
		if s.Told == started {
			s.Told = failed
			w := s.Members[at].Workload
			p.tell(events.FactEnvironmentFailed, "MemberFailed", w.Kind+" "+w.Name+" does not come to its end", false)
		}
		return
	}
	if !s.all(rollout.Completed) || !s.assembled() {
		return
	}
	whole := s.expected() > 0 && s.arrived()
	if !whole && p.at.Before(s.NewsAt.Add(p.settle)) {
		s.WakeAt = s.NewsAt.Add(p.settle)
		return
	}
	s.Told = ready
	p.tell(events.FactEnvironmentReady, "", "", !whole)
	if !s.commits() {
		s.Run = s.digest()
	}
}

// commits says that a member names one.
func (s State) commits() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Commit != "" })
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
