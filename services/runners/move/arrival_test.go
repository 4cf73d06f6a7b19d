package move_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/move"
)

// arrivalService is what an administrator of a cell uses.
func (f *fixture) arrivalService(c *cell) *move.Service {
	return move.NewService(move.Config{
		Store: c.moves, Arrivals: c.arrivals, Directory: f.state, Cell: c.name, Now: f.now,
	})
}

// until takes steps of the latest move of a cell until it has a phase.
func (f *fixture) until(c *cell, phase move.Phase) {
	f.t.Helper()
	for m := f.latest(c); m.Phase != phase; {
		after, again, err := f.driver(c).Step(f.t.Context(), m)
		require.NoError(f.t, err)
		require.True(f.t, again || after.Phase == phase, after.Message)
		m = after
	}
}

// TestCanceledArrivalContinuesAtItsSource cancels when the source has passed its point of no return.
func TestCanceledArrivalContinuesAtItsSource(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.one.newRunner()
	p := f.one.create("a: {script: x}")
	f.begin(f.one, f.two)
	f.until(f.one, move.Moved)
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM runners`))

	f.state.fail("end arrival canceled")
	service := f.arrivalService(f.two)
	_, err := service.CancelArrival(t.Context(), organization, "target")
	requireCode(t, errcode.Unavailable, err)
	require.Zero(t, f.two.count(`SELECT count(*) FROM runners`))
	for range 2 { // it can be repeated
		canceled, err := service.CancelArrival(t.Context(), organization, "target")
		require.NoError(t, err)
		require.Equal(t, move.Canceled, canceled.Phase)
	}

	// The source answers again.
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	m := f.latest(f.one)
	require.Equal(t, move.Canceled, m.Phase, m.Message)
	require.Contains(t, m.Message, "was canceled in the other cell")
	require.Empty(t, f.cellmap.moves)
	require.NoError(t, f.one.take(f.one.job(p.ID, "a")))

	// Another move succeeds.
	f.advance(time.Minute)
	f.begin(f.one, f.two)
	f.until(f.one, move.HandingOver)
}

func TestOpenArrivalIsNotCanceled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.one.newRunner()
	service := f.arrivalService(f.two)
	_, err := service.CancelArrival(t.Context(), organization, "target")
	requireCode(t, errcode.NotFound, err)
	f.begin(f.one, f.two)
	f.until(f.one, move.HandingOver)
	_, err = service.CancelArrival(t.Context(), organization, "target")
	requireCode(t, errcode.FailedPrecondition, err)
	require.ErrorContains(t, err, "is open in this cell")
	f.until(f.one, move.Done)
	_, err = service.CancelArrival(t.Context(), organization, "target")
	requireCode(t, errcode.FailedPrecondition, err)
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM runners`))
	require.NotContains(t, f.state.calls, "end arrival canceled")
}

// TestTokensOfAMoveAreRevokedAtItsEnd gives a move new tokens, and loses the state service at the end.
func TestTokensOfAMoveAreRevokedAtItsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.begin(f.one, f.two)
	for range 2 {
		_, err := f.one.moves.Begin(t.Context(), m, move.Tokens{Source: "second", Target: "target"})
		require.NoError(t, err)
	}
	f.until(f.one, move.Done)
	require.NotContains(t, f.state.calls, "revoke source")
	f.state.fail("revoke second")
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, 1, f.one.count(`SELECT count(*) FROM moves WHERE tokens IS NOT NULL`))
	f.state.calls = nil
	f.state.set("revoke source", fault.New(errcode.Unauthenticated, "it is revoked"))
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, []string{"revoke source", "revoke second"}, f.state.calls)
	require.Zero(t, f.one.count(`SELECT count(*) FROM moves WHERE tokens IS NOT NULL`))
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Len(t, f.state.calls, 2)
}
