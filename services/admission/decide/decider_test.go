package decide_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/policy"
)

// surroundings have one project without groups, and one runner.
type surroundings struct{}

func (surroundings) Groups(int64) ([]int64, bool) { return nil, true }
func (surroundings) GroupsOfUser(int64) []int64   { return nil }
func (surroundings) Runners(int64, bool) []policy.Runner {
	return []policy.Runner{{ID: 1, RunUntagged: true}}
}

// TestBeginEvaluatesUntilTheContextEnds checks that an evaluation without time decides nothing.
func TestBeginEvaluatesUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 2, 10, 40, 12, 0, time.UTC)
	denying := controller.Controller{
		ID: 7, Revision: 1, Owner: controller.Owner{Level: chain.LevelProject, ID: 4},
		Settings: controller.Settings{Name: "deny", Policy: "rules:\n  - deny: true\n    reason: not today\n"}.WithDefaults(),
	}
	asking := controller.Controller{
		ID: 8, Revision: 1, Owner: controller.Owner{Level: chain.LevelProject, ID: 4},
		Settings: controller.Settings{
			Name: "ask", Timeout: time.Minute, Webhook: &controller.Webhook{URL: "https://controller.example"},
		}.WithDefaults(),
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx         context.Context
		controllers []controller.Controller
		outcome     chain.Outcome
		asks        int64
		evaluated   bool
	}{
		"policy":                  {t.Context(), []controller.Controller{denying}, chain.Rejected, 0, true},
		"policy without time":     {ended, []controller.Controller{denying}, "", 7, false},
		"web server":              {t.Context(), []controller.Controller{asking}, "", 8, true},
		"web server without time": {ended, []controller.Controller{asking}, "", 8, false},
		"no controller":           {ended, nil, chain.Admitted, 0, true},
	} {
		d := decide.New(decide.Config{Surroundings: surroundings{}, Retry: decide.DefaultRetry()})
		s := decide.Subject{JobID: 1, Preparation: 1, ProjectID: 4, BegunAt: at, Deadline: at.Add(time.Hour)}
		j, ask, evaluated := d.Begin(c.ctx, s, c.controllers, at)
		require.Equal(t, c.outcome, j.State.Outcome, name)
		require.Equal(t, c.evaluated, evaluated, name)
		require.Equal(t, c.asks != 0, ask != nil, name)
		if ask != nil {
			require.Equal(t, chain.Question{ControllerID: c.asks, Attempt: 1}, ask.Question, name)
			require.Empty(t, j.State.Records, name)
		}
	}
}
