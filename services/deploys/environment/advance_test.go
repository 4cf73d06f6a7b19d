package environment_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/rollout"
)

// preview is the environment under test.
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
		t:     t,
		state: environment.New(environment.Key{ClusterUID: "c", Namespace: "pr", Name: "pr-1"}),
		now:   time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC),
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
	require.Equal(p.t, before, encode(p.t, p.state), "Advance changed its input")
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

// observe applies the state, commit and image of a workload. id is the rollout id; empty for a workload that existed
// before the first observation.
func (p *preview) observe(name, state, commit, image, id string) {
	annotations := map[string]string{}
	maps.Copy(annotations, p.extra)
	if commit != "" {
		annotations["lockstep.dev/commit"] = commit
	}
	m := environment.Member{
		Workload:  rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "deployment", Name: name},
		State:     state,
		Commit:    commit,
		Images:    []string{image},
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

func (p *preview) remove(name string) {
	p.advance(environment.Input{Member: &environment.Member{Workload: rollout.Key{
		ClusterUID: "c",
		Namespace:  "pr",
		Kind:       "deployment",
		Name:       name,
	}}})
}

func (p *preview) unselect(name string) {
	p.advance(environment.Input{Member: &environment.Member{
		Workload: rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "deployment", Name: name}, Unselected: true,
	}})
}

func (p *preview) wait(d time.Duration) {
	p.now = p.now.Add(d)
	p.advance(environment.Input{})
}

func (p *preview) published() []string {
	lines := []string{}
	for _, f := range p.facts {
		line := strings.TrimPrefix(string(f.Fact), "environment_")
		if !strings.HasPrefix(f.Environment.Run, "images-") {
			line += " " + f.Environment.Run
		}
		if f.Environment.Settled {
			line += " settled"
		}
		lines = append(lines, line)
	}
	return lines
}

func TestEnvironmentFacts(t *testing.T) {
	t.Parallel()
	const running, completed, failed = rollout.Running, rollout.Completed, rollout.Failed
	one, size := []string{environment.AnnotationSize + "=1"}, []string{environment.AnnotationSize + "=2"}
	names := []string{environment.AnnotationMembers + "=api,deployment/web"}
	for name, tc := range map[string]struct {
		annotations []string
		run         func(p *preview)
		want        []string
	}{
		"ready when all workloads are complete": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.observe("web", running, "c1", "w:1", "")
			p.observe("web", completed, "c1", "w:1", "r2")
			p.observe("web", completed, "c1", "w:1", "r2")
		}, []string{"started c1", "ready c1"}},
		"a new commit starts a run": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("web", running, "c1", "w:1", "")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.observe("web", completed, "c1", "w:1", "r2")
			p.observe("api", running, "c2", "a:2", "r3")
			p.observe("api", completed, "c2", "a:2", "r3")
			p.observe("web", completed, "c2", "w:1", "r2")
		}, []string{"started c1", "ready c1", "started c2", "ready c2"}},
		"a commit is not ready after a newer one started": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("web", running, "c1", "w:1", "")
			p.observe("api", running, "c2", "a:2", "r3")
			p.observe("web", running, "c2", "w:2", "r4")
			p.observe("api", completed, "c2", "a:2", "r3")
			p.observe("web", completed, "c2", "w:2", "r4")
		}, []string{"started c1", "started c2", "ready c2"}},
		"ready after the settle time when a workload keeps the old commit": {size, func(p *preview) {
			p.observe("api", completed, "c1", "a:1", "")
			p.observe("web", completed, "c1", "w:1", "")
			p.observe("api", running, "c2", "a:2", "r3")
			p.observe("api", completed, "c2", "a:2", "r3")
			p.wait(20 * time.Second)
			require.Len(p.t, p.facts, 1)
			p.wait(20 * time.Second)
		}, []string{"started c2", "ready c2 settled"}},
		"no facts for a complete environment at the first observation": {size, func(p *preview) {
			p.observe("api", completed, "c1", "a:1", "")
			p.observe("web", completed, "c1", "w:1", "")
			p.wait(time.Hour)
		}, []string{}},
		"failed when a workload stalls, ready when it recovers": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("web", completed, "c1", "w:1", "r2")
			p.observe("api", failed, "c1", "a:1", "r1")
			p.observe("api", failed, "c1", "a:1", "r1")
			p.observe("api", running, "c1", "a:1", "r1")
			p.observe("api", completed, "c1", "a:1", "r1")
		}, []string{"started c1", "failed c1", "ready c1"}},
		"ready when all named members are complete": {names, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.observe("other", completed, "c1", "o:1", "r9")
			p.wait(time.Hour)
			p.observe("web", running, "c1", "w:1", "")
			p.observe("web", completed, "c1", "w:1", "r2")
		}, []string{"started c1", "ready c1"}},
		"without a size: ready after the settle time": {nil, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.wait(10 * time.Second)
			p.observe("web", running, "c1", "w:1", "")
			p.wait(time.Hour)
			p.observe("web", completed, "c1", "w:1", "r2")
			p.wait(31 * time.Second)
			p.wait(time.Hour)
		}, []string{"started c1", "ready c1 settled"}},
		"without commits: each rollout starts a run": {size, func(p *preview) {
			p.observe("api", running, "", "a:1", "")
			p.observe("web", running, "", "w:1", "")
			p.observe("api", completed, "", "a:1", "r1")
			p.observe("web", completed, "", "w:1", "r2")
			p.observe("web", running, "", "w:2", "r3")
			p.observe("web", completed, "", "w:2", "r3")
		}, []string{"started", "ready", "started", "ready"}},
		"a new workload with the previous commit starts no run": {
			[]string{environment.AnnotationSize + "=3"},
			func(p *preview) {
				p.observe("api", running, "c1", "a:1", "")
				p.observe("web", running, "c1", "w:1", "")
				p.observe("api", running, "c2", "a:2", "r3")
				p.observe("db", running, "c1", "d:1", "")
				p.observe("web", running, "c2", "w:2", "r4")
				p.observe("db", running, "c2", "d:2", "r5")
				p.observe("api", completed, "c2", "a:2", "r3")
				p.observe("db", completed, "c2", "d:2", "r5")
				p.observe("web", completed, "c2", "w:2", "r4")
			},
			[]string{"started c1", "started c2", "ready c2"},
		},
		"a rollback to the previous commit starts a run": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("web", completed, "c1", "w:1", "r2")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.observe("api", running, "c2", "a:2", "r3")
			p.observe("api", running, "c1", "a:1", "r4")
			p.observe("api", completed, "c1", "a:1", "r4")
		}, []string{"started c1", "ready c1", "started c2", "started c1", "ready c1"}},
		"a workload with another commit fails the run only after the settle time": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("web", failed, "c1", "w:1", "r2")
			p.observe("api", running, "c2", "a:2", "r3")
			p.observe("web", running, "c2", "w:2", "r4")
			p.observe("api", completed, "c2", "a:2", "r3")
			p.observe("web", completed, "c2", "w:2", "r4")
			p.observe("web", failed, "c2", "w:2", "r4")
			p.observe("api", running, "c3", "a:3", "r5")
			p.observe("api", completed, "c3", "a:3", "r5")
			p.wait(31 * time.Second)
		}, []string{"started c1", "failed c1", "started c2", "ready c2", "started c3", "failed c3 settled"}},
		"not ready for a commit that no workload has": {nil, func(p *preview) {
			p.observe("web", running, "c1", "w:1", "")
			p.observe("web", completed, "c1", "w:1", "r1")
			p.observe("api", running, "c2", "a:2", "")
			p.remove("api")
			p.wait(time.Hour)
		}, []string{"started c1", "started c2"}},
		"the size comes from the workloads of the run": {nil, func(p *preview) {
			p.extra[environment.AnnotationSize] = "3"
			p.observe("api", running, "c1", "a:1", "")
			p.observe("db", running, "c1", "d:1", "")
			p.observe("web", running, "c1", "w:1", "")
			p.extra[environment.AnnotationSize] = "2"
			p.observe("api", running, "c2", "a:2", "r2")
			p.remove("db")
			p.observe("api", completed, "c2", "a:2", "r2")
			p.extra[environment.AnnotationSize] = "3"
			p.observe("web", completed, "c1", "w:1", "r1")
			p.wait(31 * time.Second)
		}, []string{"started c1", "started c2", "ready c2 settled"}},
		"without a commit, complete at the first observation of its rollout": {one, func(p *preview) {
			p.observe("api", completed, "", "a:1", "r1")
		}, []string{"started", "ready"}},
		"a workload without a commit among others starts no run": {size, func(p *preview) {
			p.observe("redis", completed, "", "r:1", "")
			p.observe("api", running, "c1", "a:1", "")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.observe("redis", running, "", "r:2", "r2")
			p.observe("redis", completed, "", "r:2", "r2")
		}, []string{"started c1", "ready c1"}},
		"unselected for a while: no facts": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("web", completed, "c1", "w:1", "r2")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.unselect("api")
			p.unselect("web")
			p.observe("web", completed, "c1", "w:1", "r2")
			p.observe("api", completed, "c1", "a:1", "r1")
			p.observe("api", running, "c2", "a:2", "r3")
		}, []string{"started c1", "ready c1", "started c2"}},
		"removed with its last workload": {size, func(p *preview) {
			p.observe("api", running, "c1", "a:1", "")
			p.observe("web", running, "c1", "w:1", "")
			p.remove("api")
			p.remove("web")
			p.remove("web")
			p.observe("web", running, "c1", "w:1", "")
		}, []string{"started c1", "removed c1", "started c1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPreview(t, tc.annotations...)
			tc.run(p)
			require.Equal(t, tc.want, p.published())
			ids := map[string]bool{}
			for _, f := range p.facts {
				require.False(t, ids[rollout.ID(f)])
				ids[rollout.ID(f)] = true
			}
		})
	}
}

func TestFailedEnvironmentNamesTheReasonOfItsMember(t *testing.T) {
	t.Parallel()
	p := newPreview(t, environment.AnnotationSize+"=1")
	p.observe("api", rollout.Running, "c1", "a:1", "r1")
	p.advance(environment.Input{Member: &environment.Member{
		Workload: rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "deployment", Name: "api"},
		State:    rollout.Failed, Message: "image a:1 cannot be pulled: not found", Commit: "c1", RolloutID: "r1",
	}})
	failed := p.facts[len(p.facts)-1]
	require.Equal(t, events.FactEnvironmentFailed, failed.Fact)
	require.Equal(t, "deployment api: image a:1 cannot be pulled: not found", failed.Message)
}

func TestFactListsMembers(t *testing.T) {
	t.Parallel()
	p := newPreview(t, environment.AnnotationSize+"=1", environment.AnnotationURL+"=https://pr-1.example.com")
	p.observe("api", rollout.Running, "c1", "a:1", "")
	p.observe("api", rollout.Completed, "c1", "a:1", "r1")
	f := p.facts[1]
	require.Equal(t, events.FactEnvironmentReady, f.Fact)
	require.Equal(t, events.Workload{
		ClusterUID: "c", AgentID: 7, Namespace: "pr", Kind: "group", Name: "pr-1",
		Annotations: map[string]string{
			"lockstep.dev/commit":      "c1",
			environment.AnnotationSize: "1",
			environment.AnnotationURL:  "https://pr-1.example.com",
		},
	}, f.Workload)
	require.Equal(t, "https://pr-1.example.com", f.Environment.Url)
	require.Equal(t, []events.Member{{
		Namespace: "pr",
		Kind:      "deployment",
		Name:      "api",
		RolloutID: "r1",
		State:     "completed",
	}}, f.Environment.Members)
	require.Equal(t, 1000, *f.DurationMs)
}

func workload(annotations map[string]string, template string) *events.ObservedWorkload {
	created := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	return &events.ObservedWorkload{
		Kind: events.WorkloadKindDaemonset, Generation: 1, ObservedGeneration: 1, TemplateGeneration: 1, HasStatus: true,
		Template: &events.PodTemplate{Digest: template, Images: []events.TemplateImage{{Container: "c", Image: "a:1"}}},
		Object: events.ObjectMeta{
			ClusterUID:      "c",
			Namespace:       "pr",
			Name:            "api",
			UID:             "u",
			ResourceVersion: "5",
			Verb:            events.VerbUpserted,
			FirstSeen:       true,
			CreatedAt:       &created,
			ObservedAt:      created, Annotations: annotations, Labels: map[string]string{"lockstep.dev/deploy-group": "pr-1"},
		},
	}
}

func TestLabelGroupsWorkloads(t *testing.T) {
	t.Parallel()
	key := rollout.Key{ClusterUID: "c", Namespace: "pr", Kind: "daemonset", Name: "api"}
	rules := environment.Rules{}
	nothing := rollout.New(key)
	first, _ := rollout.Advance(nothing,
		rollout.Input{Workload: workload(map[string]string{"lockstep.dev/commit": "c1"}, "t")})
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
	require.Len(t, changes, 2, "removed from one group, added to another")
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
