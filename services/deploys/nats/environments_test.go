package nats_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnEnvironmentIsReadyWhenItsLastMemberIsAndIsToldAfterIt(t *testing.T) {
	t.Parallel()
	var first []string
	for _, batch := range []int{0, 1, 4} {
		w := setup(t)
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
		w.take(batch)
		facts := w.once()
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
