package e2e_test

import (
	"context"
	"testing"

	"lockstep.internal/tools/stack"
)

// TestMishaps has users change workspaces while what the services stand on is taken away and comes back.
func TestMishaps(t *testing.T) {
	t.Parallel()
	const changesPerUser = 30
	seed := seedOf(t)
	s := start(t, quickLeases)
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
		for _, service := range []string{stack.State, s.watcher(), s.dispatcher()} {
			if err := s.Restart(ctx, service); err != nil {
				return err
			}
		}
		return nil
	}
	s.requireUnharmed(seed, changesPerUser, []fate{restartNATS, restartNATS, restartDatabase, restartDatabase, crashDatabase, crashDatabase, restartAll})
}
