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

const settle = 30 * time.Second

// referee checks each fact against the inputs of the environment.
type referee struct {
	*preview

	rng     *rand.Rand
	members map[string]environment.Member
	news    time.Time
	run     string // the started run, empty if there is none
	last    events.Fact
	moved   bool // an input changed the initial state
	emptied bool // since the last fact
	checked int
}

// observe applies the state of a member. An empty state removes it.
func (r *referee) observe(m environment.Member) {
	known, there := r.members[m.Workload.Name]
	again := there && encode(r.t, known) == encode(r.t, m) || !there && m.State == ""
	if !again {
		r.news = r.now.Add(time.Second) // as in advance
	}
	before := encode(r.t, r.state)
	last := len(r.members) == 1 && there && m.State == ""
	if m.State == "" {
		delete(r.members, m.Workload.Name)
	} else {
		r.members[m.Workload.Name] = m
		r.moved = r.moved || m.State != rollout.Completed || m.RolloutID != "" || there && known.Commit != m.Commit
	}
	r.emptied = r.emptied || len(r.members) == 0
	r.advance(environment.Input{Member: &m})
	if again {
		require.Equal(r.t, before, encode(r.t, r.state), "an equal input changes nothing")
	}
	r.judge(last && !m.Unselected)
}

func (r *referee) tick() {
	r.advance(environment.Input{})
	r.judge(false)
}

// judge checks the new facts.
func (r *referee) judge(deleted bool) {
	require.True(r.t, r.moved || len(r.facts) == 0, "an initial state publishes nothing")
	for _, f := range r.facts[r.checked:] {
		run := f.Environment.Run
		switch f.Fact {
		case events.FactEnvironmentStarted:
			images := strings.HasPrefix(run, "images-") // which may come back
			require.True(r.t, run != r.run || r.emptied || images && r.last != events.FactEnvironmentStarted, "%s starts twice", run)
			r.run = run
			require.True(r.t, images || r.some(func(m environment.Member) bool { return m.Commit == run }), "nobody names %s", run)
		case events.FactEnvironmentFailed:
			require.Equal(r.t, r.run, run)
			require.Equal(r.t, events.FactEnvironmentStarted, r.last, "fails once, and after its start")
			require.True(r.t, r.some(func(m environment.Member) bool {
				return m.State == rollout.Failed && (f.Environment.Settled || m.Commit == "" || m.Commit == run)
			}), "none of it has failed")
			r.unless(f)
		case events.FactEnvironmentReady:
			require.Equal(r.t, r.run, run)
			require.Contains(r.t, []events.Fact{events.FactEnvironmentStarted, events.FactEnvironmentFailed}, r.last, "is ready once, and after its start")
			require.NotEmpty(r.t, r.members)
			require.False(r.t, r.some(func(m environment.Member) bool { return m.State != rollout.Completed }), "not all are complete")
			require.GreaterOrEqual(r.t, len(r.members), f.Environment.Expected)
			require.False(r.t, !f.Environment.Settled && r.some(func(m environment.Member) bool { return m.Commit != "" && m.Commit != run }), "another commit is there")
			require.False(r.t, !f.Environment.Settled && f.Environment.Expected == 0, "nobody said how many there are")
			r.unless(f)
		case events.FactEnvironmentRemoved:
			require.True(r.t, deleted, "workloads are left")
			r.run = ""
		default:
			require.Fail(r.t, "another fact", f.Fact)
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

// Without a recent change the environment is settled.
func (r *referee) unless(f events.DeployFact) {
	require.False(r.t, f.Environment.Settled && f.ObservedAt.Before(r.news.Add(settle)), "news at %s, settled at %s", r.news, f.ObservedAt)
}

func (r *referee) some(is func(m environment.Member) bool) bool {
	for _, m := range r.members {
		if is(m) {
			return true
		}
	}
	return false
}

// member returns a random member with a random commit.
func (r *referee) member(sized byte) environment.Member {
	name := string(rune('a' + r.rng.IntN(4)))
	m := environment.Member{
		Workload: rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "deployment", Name: name}, State: []string{rollout.Running, rollout.Completed, rollout.Failed}[r.rng.IntN(3)],
		RolloutID: []string{"", "r" + strconv.Itoa(r.rng.IntN(3))}[r.rng.IntN(2)], Reconstructed: r.rng.IntN(9) == 0, Images: []string{"i:" + strconv.Itoa(r.rng.IntN(3))},
	}
	if known, there := r.members[name]; there && r.rng.IntN(3) > 0 { // most news are of one thing
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

// For any order of inputs, each run has one start, then at most one failure and one readiness, each
// only if it is true. An environment at rest is ready or failed.
func FuzzRuns(f *testing.F) {
	for seed := range uint64(32) {
		f.Add(seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, sized byte) {
		r := &referee{preview: newPreview(t), rng: rand.New(rand.NewPCG(seed, 1)), members: map[string]environment.Member{}}
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
		r.rest()
	})
}

// rest completes everything with one commit, and then nothing changes.
func (r *referee) rest() {
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
