package environment_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/rollout"
)

const settleTime = 30 * time.Second

// checker checks each fact against the inputs of the environment.
type checker struct {
	*preview

	rng       *rand.Rand
	members   map[string]environment.Member
	changedAt time.Time // of the last input that changed something
	run       string    // the started run, empty if there is none
	last      events.Fact
	moved     bool // an input changed the initial state
	emptied   bool // since the last fact
	checked   int
}

// observe applies the state of a member. An empty state removes the member.
func (r *checker) observe(m environment.Member) {
	known, exists := r.members[m.Workload.Name]
	unchanged := exists && encode(r.t, known) == encode(r.t, m) || !exists && m.State == ""
	if !unchanged {
		r.changedAt = r.now.Add(time.Second) // as in advance
	}
	before := encode(r.t, r.state)
	last := len(r.members) == 1 && exists && m.State == ""
	if m.State == "" {
		delete(r.members, m.Workload.Name)
	} else {
		r.members[m.Workload.Name] = m
		r.moved = r.moved || m.State != rollout.Completed || m.RolloutID != "" || exists && known.Commit != m.Commit
	}
	r.emptied = r.emptied || len(r.members) == 0
	r.advance(environment.Input{Member: &m})
	if unchanged {
		require.Equal(r.t, before, encode(r.t, r.state), "an equal input changed the state")
	}
	r.checkFacts(last && !m.Unselected)
}

func (r *checker) tick() {
	r.advance(environment.Input{})
	r.checkFacts(false)
}

// checkFacts checks the new facts. deleted reports that the last input deleted the last member.
func (r *checker) checkFacts(deleted bool) {
	require.True(r.t, r.moved || len(r.facts) == 0, "facts of an initial state")
	for _, f := range r.facts[r.checked:] {
		run := f.Environment.Run
		switch f.Fact {
		case events.FactEnvironmentStarted:
			images := strings.HasPrefix(run, "images-") // the same images may run again
			require.True(r.t, run != r.run || r.emptied || images && r.last != events.FactEnvironmentStarted, "%s started twice",
				run)
			r.run = run
			require.True(r.t, images || r.anyMember(func(m environment.Member) bool {
				return m.Commit == run
			}), "no member has commit %s", run)
		case events.FactEnvironmentFailed:
			require.Equal(r.t, r.run, run)
			require.Equal(r.t, events.FactEnvironmentStarted, r.last, "failed more than once, or before its start")
			require.True(r.t, r.anyMember(func(m environment.Member) bool {
				return m.State == rollout.Failed && (f.Environment.Settled || m.Commit == "" || m.Commit == run)
			}), "no member has failed")
			r.checkSettled(f)
		case events.FactEnvironmentReady:
			require.Equal(r.t, r.run, run)
			require.Contains(r.t, []events.Fact{
				events.FactEnvironmentStarted, events.FactEnvironmentFailed,
			}, r.last, "ready more than once, or before its start")
			require.NotEmpty(r.t, r.members)
			require.False(r.t, r.anyMember(func(m environment.Member) bool {
				return m.State != rollout.Completed
			}), "a member is not complete")
			require.GreaterOrEqual(r.t, len(r.members), f.Environment.Expected)
			require.False(r.t, !f.Environment.Settled && r.anyMember(func(m environment.Member) bool {
				return m.Commit != "" && m.Commit != run
			}), "a member has another commit")
			require.False(r.t, !f.Environment.Settled && f.Environment.Expected == 0, "the size is unknown")
			r.checkSettled(f)
		case events.FactEnvironmentRemoved:
			require.True(r.t, deleted, "removed although it has members")
			r.run = ""
		default:
			require.Fail(r.t, "unexpected fact", f.Fact)
		}
		if f.Fact != events.FactEnvironmentRemoved {
			require.Len(r.t, f.Environment.Members, len(r.members))
			for _, m := range f.Environment.Members {
				require.Equal(r.t, r.members[m.Name].State, m.State)
			}
		}
		require.False(r.t, f.DurationMs != nil && *f.DurationMs < 0)
		r.last, r.emptied = f.Fact, len(r.members) == 0
		r.checked++
	}
	if deleted {
		r.last = ""
	}
}

// checkSettled checks that a settled fact comes after the settle time.
func (r *checker) checkSettled(f events.DeployFact) {
	tooEarly := f.ObservedAt.Before(r.changedAt.Add(settleTime))
	require.False(r.t, f.Environment.Settled && tooEarly, "changed at %s, settled at %s", r.changedAt, f.ObservedAt)
}

func (r *checker) anyMember(matches func(m environment.Member) bool) bool {
	for _, m := range r.members {
		if matches(m) {
			return true
		}
	}
	return false
}

// member returns a random member with a random commit.
func (r *checker) member(sized byte) environment.Member {
	name := string(rune('a' + r.rng.IntN(4)))
	m := environment.Member{
		Workload:      rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "deployment", Name: name},
		State:         []string{rollout.Running, rollout.Completed, rollout.Failed}[r.rng.IntN(3)],
		RolloutID:     []string{"", "r" + strconv.Itoa(r.rng.IntN(3))}[r.rng.IntN(2)],
		Reconstructed: r.rng.IntN(9) == 0,
		Images:        []string{"i:" + strconv.Itoa(r.rng.IntN(3))},
	}
	if known, exists := r.members[name]; exists && r.rng.IntN(3) > 0 { // mostly, only the state of a known member changes
		m.RolloutID, m.Images, m.Commit = known.RolloutID, known.Images, known.Commit
	} else if r.rng.IntN(4) > 0 && sized&8 == 0 {
		m.Commit = "c" + strconv.Itoa(r.rng.IntN(3))
	}
	if r.rng.IntN(3) == 0 {
		switch sized & 3 {
		case 1:
			m.Size = 1 + r.rng.IntN(4)
		case 2:
			m.Names = []string{"a", "deployment/b"}
		case 3:
			m.Size, m.Names = 2, []string{"a"}
		}
	}
	return m
}

// FuzzRuns applies random inputs in random order. Each run has one fact started, then at most one failed and one ready,
// and each fact agrees with the members. An environment without further changes becomes ready.
func FuzzRuns(f *testing.F) {
	for seed := range uint64(32) {
		f.Add(seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, sized byte) {
		r := &checker{preview: newPreview(t), rng: rand.New(rand.NewPCG(seed, 1)), members: map[string]environment.Member{}}
		for range 80 {
			switch r.rng.IntN(10) {
			case 0:
				r.observe(environment.Member{Workload: r.member(sized).Workload, Unselected: r.rng.IntN(4) == 0})
			case 1:
				r.now = r.now.Add(time.Duration(r.rng.IntN(60)) * time.Second)
				r.tick()
			case 2:
				if wake := r.state.Wake(); wake.After(r.now) {
					r.now = wake.Add(-time.Second)
					r.tick()
				}
			default:
				r.observe(r.member(sized))
			}
			var back environment.State
			require.NoError(t, json.Unmarshal([]byte(encode(t, r.state)), &back))
			require.Equal(t, encode(t, r.state), encode(t, back))
			r.state = back
		}
		r.settle()
	})
}

// settle completes all members with one commit, waits for the settle time and removes them.
func (r *checker) settle() {
	names := make([]string, 0, len(r.members))
	for name := range r.members {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m := r.members[name]
		m.State, m.Commit, m.Size, m.Names, m.RolloutID = rollout.Running, "last", 0, nil, "last"
		r.observe(m)
		m.State = rollout.Completed
		r.observe(m)
	}
	for range 3 {
		if wake := r.state.Wake(); wake.After(r.now) {
			r.now = wake.Add(-time.Second)
		}
		r.tick()
	}
	if len(names) > 0 {
		require.Equal(r.t, events.FactEnvironmentReady, r.last)
		require.Equal(r.t, "last", r.run)
		require.True(r.t, r.state.Wake().IsZero())
	}
	for _, name := range names {
		r.observe(environment.Member{Workload: r.members[name].Workload})
	}
	if len(names) > 0 {
		require.Equal(r.t, events.FactEnvironmentRemoved, r.facts[len(r.facts)-1].Fact)
	}
}
