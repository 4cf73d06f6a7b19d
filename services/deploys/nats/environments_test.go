package nats_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEnvironmentIsReadyAfterItsLastMember(t *testing.T) {
	t.Parallel()
	var first []string
	for _, batch := range []int{0, 1, 4} {
		w := newFixture(t)
		a := w.agent(7)
		apps := a.apps("web", "api")
		for _, p := range apps {
			p.labels[label] = "pr-5"
			p.annotations = map[string]string{"lockstep.dev/deploy-group-size": "2", "lockstep.dev/commit": "c1"}
		}
		a.list("s", apps...)
		for _, p := range apps {
			p.annotations = map[string]string{"lockstep.dev/deploy-group-size": "2", "lockstep.dev/commit": "c2"}
			p.roll("i:2")
		}
		apps[1].finish()
		apps[0].finish()
		w.process(batch)
		facts := w.checkOnce()
		require.Equal(t, []string{"environment_started", "environment_ready"}, names(facts, "pr-5"))
		at := func(name, what string) int {
			return slices.IndexFunc(facts, func(f fact) bool { return f.Workload.Name == name && string(f.Fact) == what })
		}
		require.Greater(t, at("pr-5", "environment_ready"), at("web", "completed"))
		require.Greater(t, at("pr-5", "environment_ready"), at("api", "completed"))
		if first == nil {
			first = names(facts, "pr-5")
		}
		require.Equal(t, first, names(facts, "pr-5"))
		require.Empty(t, w.rebuild(true, 3).Differences)
	}
}

func TestRecreatedEnvironmentIsPublishedAgain(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{0, 1} {
		w := newFixture(t)
		a := w.agent(7)
		deploy := func(uid string) *app {
			p := a.app("web")
			p.uid, p.labels[label] = uid, "pr-5"
			p.annotations = map[string]string{"lockstep.dev/deploy-group-size": "1", "lockstep.dev/commit": "c1"}
			a.list("s", p)
			p.roll("i:2")
			p.finish()
			return p
		}
		deploy("first").delete()
		w.process(batch)
		want := []string{"environment_started", "environment_ready", "environment_removed"}
		require.Equal(t, want, names(w.checkOnce(), "pr-5"))
		p := deploy("second")
		a.list("s", p)
		w.process(batch)
		want = append(want, "environment_started", "environment_ready")
		require.Equal(t, want, names(w.checkOnce(), "pr-5"), "the same commit")
		require.Empty(t, w.rebuild(true, 3).Differences)
	}
}
