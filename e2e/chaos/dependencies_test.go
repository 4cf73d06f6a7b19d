package chaos_test

import (
	"context"
	"testing"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/tools/stack"
)

// TestDependenciesFail lets users change workspaces while NATS and PostgreSQL stop, crash and
// restart.
func TestDependenciesFail(t *testing.T) {
	t.Parallel()
	runSeeds(t, runDependencyFaults)
}

func runDependencyFaults(t *testing.T, seed uint64) {
	t.Helper()
	const changesPerUser = 30
	s := fixture.Start(t, fixture.ShortLeases)
	restartNATS := func(context.Context) error { return s.NATS().Restart() }
	restartDatabase := func(ctx context.Context) error { return s.Database().Restart(ctx) }
	crashDatabase := func(ctx context.Context) error {
		s.Database().Kill()
		return s.Database().Restart(ctx)
	}
	restartAll := func(ctx context.Context) error {
		if err := s.NATS().Restart(); err != nil {
			return err
		}
		for _, service := range []string{stack.State, s.WatcherName(), s.DispatcherName()} {
			if err := s.Restart(ctx, service); err != nil {
				return err
			}
		}
		return nil
	}
	requireCorrectUnderFaults(s, seed, changesPerUser, []disruption{
		restartNATS, restartNATS, restartDatabase, restartDatabase, crashDatabase, crashDatabase, restartAll,
	})
}
