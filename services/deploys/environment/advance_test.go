package environment_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/rollout"
)

// preview feeds an environment with news of its members.
type preview struct {
	t     testing.TB
	rules environment.Rules
	state environment.State
	now   time.Time
	facts []events.DeployFact
	extra map[string]string
}

func newPreview(t testing.TB, annotations ...string) *preview {
	p := &preview{
		t: t, state: environment.New(environment.Key{ClusterUID: "c", Namespace: "pr", Name: "pr-1"}), now: time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC),
		extra: map[string]string{},
	}
	for _, a := range annotations {
		name, value, _ := strings.Cut(a, "=")
		p.extra[name] = value
	}
	return p
}

func (p *preview) advance(in environment.Input) {
	p.now = p.now.Add(time.Second)
	in.AgentID, in.ObservedAt = 7, p.now
	before := encode(p.t, p.state)
	next, facts := p.rules.Advance(p.state, in)
	require.Equal(p.t, before, encode(p.t, p.state), "the state given was changed")
	p.state = next
	for _, f := range facts {
		raw, err := json.Marshal(f)
		require.NoError(p.t, err)
		require.NoError(p.t, events.Validate(events.TypeDeployFact, raw))
		require.Equal(p.t, len(p.facts)+1, f.Sequence)
		p.facts = append(p.facts, f)
	}
}

func encode(t testing.TB, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

// hear of a workload: its state, commit and image; rollout "" for one that was there before.
func (p *preview) hear(name, state, commit, image, id string) {
	annotations := map[string]string{}
	maps.Copy(annotations, p.extra)
	if commit != "" {
		annotations["lockstep.dev/commit"] = commit
	}
	m := environment.Member{
		Workload: rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "deployment", Name: name}, State: state, Commit: commit, Images: []string{image},
		RolloutID: id, Annotations: annotations,
	}
	if p.extra[environment.AnnotationSize] != "" {
		_, err := fmt.Sscan(p.extra[environment.AnnotationSize], &m.Size)
		require.NoError(p.t, err)
	}
	if names := p.extra[environment.AnnotationMembers]; names != "" {
		m.Names = strings.Split(names, ",")
	}
	p.advance(environment.Input{Member: &m})
}

func (p *preview) gone(name string) {
	p.advance(environment.Input{Member: &environment.Member{Workload: rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "deployment", Name: name}}})
}

func (p *preview) wait(d time.Duration) {
	p.now = p.now.Add(d)
	p.advance(environment.Input{})
}

func (p *preview) said() []string {
	said := []string{}
	for _, f := range p.facts {
		line := strings.TrimPrefix(string(f.Fact), "environment_")
		if !strings.HasPrefix(f.Environment.Run, "images-") {
			line += " " + f.Environment.Run
		}
		if f.Environment.Settled {
			line += " settled"
		}
		said = append(said, line)
	}
	return said
}

func TestAnEnvironment(t *testing.T) {
	t.Parallel()
	const running, completed, failed = rollout.Running, rollout.Completed, rollout.Failed
	size := []string{environment.AnnotationSize + "=2"}
	for name, tc := range map[string]struct {
		annotations []string
		does        func(p *preview)
		says        []string
	}{
		"is ready when the last of its workloads is": {size, func(p *preview) {
			p.hear("api", running, "c1", "a:1", "")
			p.hear("api", completed, "c1", "a:1", "r1")
			p.hear("web", running, "c1", "w:1", "")
			p.hear("web", completed, "c1", "w:1", "r2")
			p.hear("web", completed, "c1", "w:1", "r2")
		}, []string{"started c1", "ready c1"}},
		"a new commit is a new run": {size, func(p *preview) {
			p.hear("api", running, "c1", "a:1", "")
			p.hear("web", running, "c1", "w:1", "")
			p.hear("api", completed, "c1", "a:1", "r1")
			p.hear("web", completed, "c1", "w:1", "r2")
			p.hear("api", running, "c2", "a:2", "r3")
			p.hear("api", completed, "c2", "a:2", "r3")
			p.hear("web", completed, "c2", "w:1", "r2")
		}, []string{"started c1", "ready c1", "started c2", "ready c2"}},
		"a commit overtaken by another is never ready": {size, func(p *preview) {
			p.hear("api", running, "c1", "a:1", "")
			p.hear("web", running, "c1", "w:1", "")
			p.hear("api", running, "c2", "a:2", "r3")
			p.hear("web", running, "c2", "w:2", "r4")
			p.hear("api", completed, "c2", "a:2", "r3")
			p.hear("web", completed, "c2", "w:2", "r4")
		}, []string{"started c1", "started c2", "ready c2"}},
		"a workload that does not change keeps its commit: a settle time decides": {size, func(p *preview) {
			p.hear("api", completed, "c1", "a:1", "")
			p.hear("web", completed, "c1", "w:1", "")
			p.hear("api", running, "c2", "a:2", "r3")
			p.hear("api", completed, "c2", "a:2", "r3")
			p.wait(20 * time.Second)
			require.Len(p.t, p.facts, 1)
			p.wait(20 * time.Second)
		}, []string{"started c2", "ready c2 settled"}},
		"what was there before is silent": {size, func(p *preview) {
			p.hear("api", completed, "c1", "a:1", "")
			p.hear("web", completed, "c1", "w:1", "")
			p.wait(time.Hour)
		}, []string{}},
		"fails when a workload stalls, and may recover": {size, func(p *preview) {
			p.hear("api", running, "c1", "a:1", "")
			p.hear("web", completed, "c1", "w:1", "r2")
			p.hear("api", failed, "c1", "a:1", "r1")
			p.hear("api", failed, "c1", "a:1", "r1")
			p.hear("api", running, "c1", "a:1", "r1")
			p.hear("api", completed, "c1", "a:1", "r1")
		}, []string{"started c1", "failed c1", "ready c1"}},
		"names its members": {[]string{environment.AnnotationMembers + "=api,deployment/web"}, func(p *preview) {
			p.hear("api", running, "c1", "a:1", "")
			p.hear("api", completed, "c1", "a:1", "r1")
			p.hear("other", completed, "c1", "o:1", "r9")
			p.wait(time.Hour)
			p.hear("web", running, "c1", "w:1", "")
			p.hear("web", completed, "c1", "w:1", "r2")
		}, []string{"started c1", "ready c1"}},
		"says nothing of its size: settles": {nil, func(p *preview) {
			p.hear("api", running, "c1", "a:1", "")
			p.hear("api", completed, "c1", "a:1", "r1")
			p.wait(10 * time.Second)
			p.hear("web", running, "c1", "w:1", "")
			p.wait(time.Hour)
			p.hear("web", completed, "c1", "w:1", "r2")
			p.wait(31 * time.Second)
			p.wait(time.Hour)
		}, []string{"started c1", "ready c1 settled"}},
		"without commits: each time something rolls out": {size, func(p *preview) {
			p.hear("api", running, "", "a:1", "")
			p.hear("web", running, "", "w:1", "")
			p.hear("api", completed, "", "a:1", "r1")
			p.hear("web", completed, "", "w:1", "r2")
			p.hear("web", running, "", "w:2", "r3")
			p.hear("web", completed, "", "w:2", "r3")
		}, []string{"started", "ready", "started", "ready"}},
		"goes away with its last workload": {size, func(p *preview) {
			p.hear("api", running, "c1", "a:1", "")
			p.hear("web", running, "c1", "w:1", "")
			p.gone("api")
			p.gone("web")
			p.gone("web")
			p.hear("web", running, "c1", "w:1", "")
		}, []string{"started c1", "removed c1", "started c1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPreview(t, tc.annotations...)
			tc.does(p)
			require.Equal(t, tc.says, p.said())
			ids := map[string]bool{}
			for _, f := range p.facts {
				require.False(t, ids[rollout.ID(f)])
				ids[rollout.ID(f)] = true
			}
		})
	}
}

func TestAFactOfAnEnvironmentTellsOfItsMembers(t *testing.T) {
	t.Parallel()
	p := newPreview(t, environment.AnnotationSize+"=1", environment.AnnotationURL+"=https://pr-1.example.com")
	p.hear("api", rollout.Running, "c1", "a:1", "")
	p.hear("api", rollout.Completed, "c1", "a:1", "r1")
	f := p.facts[1]
	require.Equal(t, events.FactEnvironmentReady, f.Fact)
	require.Equal(t, events.Workload{
		ClusterUID: "c", AgentID: 7, Namespace: "pr", Kind: "group", Name: "pr-1",
		Annotations: map[string]string{"lockstep.dev/commit": "c1", environment.AnnotationSize: "1", environment.AnnotationURL: "https://pr-1.example.com"},
	}, f.Workload)
	require.Equal(t, "https://pr-1.example.com", f.Environment.Url)
	require.Equal(t, []events.Member{{Namespace: "pr", Kind: "deployment", Name: "api", RolloutID: "r1", State: "completed"}}, f.Environment.Members)
	require.Equal(t, 1000, *f.DurationMs)
}

func workload(annotations map[string]string, template string) *events.ObservedWorkload {
	created := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	return &events.ObservedWorkload{
		Kind: events.WorkloadKindDaemonset, Generation: 1, ObservedGeneration: 1, TemplateGeneration: 1, HasStatus: true,
		Template: &events.PodTemplate{Digest: template, Images: []events.TemplateImage{{Container: "c", Image: "a:1"}}},
		Object: events.ObjectMeta{
			ClusterUID: "c", Namespace: "pr", Name: "api", UID: "u", ResourceVersion: "5", Verb: events.VerbUpserted, FirstSeen: true, CreatedAt: &created,
			ObservedAt: created, Annotations: annotations, Labels: map[string]string{"lockstep.dev/deploy-group": "pr-1"},
		},
	}
}

func TestAWorkloadBelongsToAnEnvironmentByItsLabel(t *testing.T) {
	t.Parallel()
	key := rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "daemonset", Name: "api"}
	rules := environment.Rules{}
	nothing := rollout.New(key)
	first, _ := rollout.Advance(nothing, rollout.Input{Workload: workload(map[string]string{"lockstep.dev/commit": "c1"}, "t")})
	changes := rules.Changes(nothing, first)
	require.Len(t, changes, 1)
	require.Equal(t, environment.Key{ClusterUID: "c", Namespace: "pr", Name: "pr-1"}, changes[0].Key)
	require.Equal(t, rollout.Completed, changes[0].Input.Member.State)
	require.Equal(t, "c1", changes[0].Input.Member.Commit)
	require.Empty(t, rules.Changes(first, first))

	moved := workload(map[string]string{environment.AnnotationScope: "cluster"}, "t")
	moved.Object.ResourceVersion, moved.Object.FirstSeen = "6", false
	second, _ := rollout.Advance(first, rollout.Input{Workload: moved})
	changes = rules.Changes(first, second)
	require.Len(t, changes, 2, "out of one group, into another")
	require.True(t, changes[0].Input.Member.Unselected)
	require.Empty(t, changes[0].Input.Member.State)
	require.Empty(t, changes[1].Key.Namespace)

	deleted := workload(nil, "t")
	deleted.Object.ResourceVersion, deleted.Object.Verb = "7", events.VerbDeleted
	third, _ := rollout.Advance(second, rollout.Input{Workload: deleted})
	changes = rules.Changes(second, third)
	require.Len(t, changes, 1)
	require.False(t, changes[0].Input.Member.Unselected)
	require.Empty(t, rules.Changes(third, third))
	require.Empty(t, environment.Rules{Label: "team"}.Changes(nothing, first))
}

// Of each run at most one start, one failure and one readiness are told, in that order, whatever the news.
func FuzzAdvance(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, sized bool) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := newPreview(t)
		if sized {
			p = newPreview(t, environment.AnnotationSize+"=2")
		}
		states := []string{rollout.Running, rollout.Completed, rollout.Failed}
		for range 60 {
			name := string(rune('a' + rng.IntN(3)))
			switch rng.IntN(8) {
			case 0:
				p.gone(name)
			case 1:
				p.wait(time.Duration(rng.IntN(60)) * time.Second)
			default:
				p.hear(name, states[rng.IntN(3)], []string{"", "c1", "c2"}[rng.IntN(3)], "i", []string{"", "r"}[rng.IntN(2)])
			}
			var back environment.State
			require.NoError(t, json.Unmarshal([]byte(encode(t, p.state)), &back))
			require.Equal(t, encode(t, p.state), encode(t, back))
			p.state = back
		}
		told := ""
		for _, f := range p.facts {
			switch f.Fact {
			case events.FactEnvironmentStarted:
				told = "started"
			case events.FactEnvironmentFailed:
				require.Equal(t, "started", told)
				told = "failed"
			case events.FactEnvironmentReady:
				require.Contains(t, []string{"started", "failed"}, told)
				told = "ready"
			default:
				told = ""
			}
		}
	})
}
