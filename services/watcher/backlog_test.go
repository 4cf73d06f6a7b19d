package watcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/watcher"
)

func sent(t *testing.T, l *watcher.Ledger) []string {
	t.Helper()
	var out []string
	for {
		d, text := next(t, l)
		if text == "" {
			return out
		}
		if d.Skipped > 0 {
			text += fmt.Sprintf(" after %d", d.Skipped)
		}
		l.Acked(d, epoch())
		out = append(out, text)
	}
}

func TestEveryVersionIsToldInOrder(t *testing.T) {
	t.Parallel()
	l := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10})
	l.Baseline(live("a", 1))
	require.Empty(t, sent(t, l), "it waits for the first resync")
	l.Observe(live("a", 2))
	l.Observe(live("a", 3))
	l.Observe(live("b", 4))
	l.Observe(dead("a", 5))
	require.Equal(t, []string{"a@1 first", "b@4", "a@2", "a@3", "a@5 deleted"}, sent(t, l), "one of each object after the other")
	require.Equal(t, 1, l.Size())
}

func TestAVersionThatFailsIsToldBeforeTheNext(t *testing.T) {
	t.Parallel()
	l := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10})
	l.Observe(live("a", 1))
	d, _ := next(t, l)
	l.Observe(live("a", 2))
	l.Failed(d, epoch().Add(time.Second))
	require.Empty(t, sent(t, l))
	l.Hurry(epoch())
	d, text := next(t, l)
	require.Equal(t, "a@1", text)
	require.Equal(t, 2, d.Attempt)
	l.Acked(d, epoch())
	d, text = next(t, l)
	require.Equal(t, "a@2", text)
	require.Equal(t, 1, d.Attempt)
}

func TestAMemberWaitsForTheVersionsBeforeIt(t *testing.T) {
	t.Parallel()
	l := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10})
	l.Observe(live("a", 1))
	l.Pause()
	l.Observe(live("a", 2))
	l.Observe(live("a", 3))
	l.Observe(live("gone", 3))
	l.Join("r", listed(4, live("a", 3)), epoch())
	l.Observe(live("a", 5))
	l.Resume()
	require.ElementsMatch(t, []string{"a@1", "gone@3", "a@2", "gone@3 deleted", "a@3", "a@5 of r"}, sent(t, l))
	require.Zero(t, l.Outstanding())
}

func TestWhatThereIsNoRoomForIsSaidToBeSkipped(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		bounds   watcher.Bounds
		inFlight bool
		want     []string
	}{
		"room for all":            {bounds: watcher.Bounds{PerObject: 9, Total: 9}, want: []string{"a@1", "a@2", "a@3", "a@4", "a@5", "a@6", "a@7", "a@8"}},
		"the middle goes":         {bounds: watcher.Bounds{PerObject: 4, Total: 9}, want: []string{"a@1", "a@2", "a@6 after 3", "a@7", "a@8"}},
		"room for one":            {bounds: watcher.Bounds{PerObject: 1, Total: 9}, want: []string{"a@1", "a@8 after 6"}},
		"what is in flight stays": {bounds: watcher.Bounds{PerObject: 1, Total: 9}, inFlight: true, want: []string{"a@1", "a@8 after 6"}},
		"no room at all":          {bounds: watcher.Bounds{PerObject: 9, Total: 0}, want: []string{"a@8 after 7"}},
		"none, and one in flight": {bounds: watcher.Bounds{PerObject: 9, Total: 0}, inFlight: true, want: []string{"a@1", "a@8 after 6"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := watcher.NewHistoricLedger(tc.bounds)
			l.Observe(live("a", 1))
			var flying watcher.Delivery
			if tc.inFlight {
				flying, _ = next(t, l)
			}
			for version := 2; version <= 8; version++ {
				l.Observe(live("a", version))
			}
			if tc.inFlight {
				l.Failed(flying, epoch())
			}
			require.Equal(t, tc.want, sent(t, l))
			l.Observe(live("a", 9))
			require.Equal(t, []string{"a@9"}, sent(t, l), "said once")
		})
	}
}

func TestTheRoomIsForAllObjectsTogether(t *testing.T) {
	t.Parallel()
	l := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 3})
	for version := 1; version <= 4; version++ {
		l.Observe(live("a", version))
	}
	l.Observe(live("b", 5))
	l.Observe(live("b", 6))
	require.Equal(t, []string{"a@1", "b@6 after 1", "a@2", "a@3", "a@4"}, sent(t, l))
	l.Observe(live("b", 7))
	l.Observe(live("b", 8))
	require.Equal(t, []string{"b@7", "b@8"}, sent(t, l), "there is room again")
}

func TestLagIsWhatTheWatchHasNotToldYet(t *testing.T) {
	t.Parallel()
	l := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10})
	l.Observe(live("a", 1))
	l.Observe(live("gone", 2))
	listing := listed(9, live("a", 4), live("new", 5))
	require.Equal(t, 3, l.Lag(listing))
	l.Observe(live("a", 3))
	require.Equal(t, 3, l.Lag(listing))
	l.Observe(live("a", 4))
	l.Observe(live("new", 5))
	require.Equal(t, 1, l.Lag(listing))
	l.Observe(dead("gone", 6))
	require.Zero(t, l.Lag(listing))
	coalescing := watcher.NewLedger()
	require.Zero(t, coalescing.Lag(listing), "only the latest counts there")
}

// A watch that lost its place after the cluster was listed knows better that an object is gone.
func TestAListingBringsNothingBack(t *testing.T) {
	t.Parallel()
	l := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10})
	l.Observe(live("a", 1))
	require.Equal(t, []string{"a@1"}, sent(t, l))
	l.Pause()
	l.Vanished(dead("a", 1))
	l.Join("r", listed(4, live("a", 3)), epoch())
	l.Resume()
	require.Equal(t, []string{"a@3", "a@3 deleted of r"}, sent(t, l))
	require.Zero(t, l.Size())
}

// again is an object that bears a name after another.
func again(s watcher.Sighting) watcher.Sighting {
	s.UID += "-again"
	return s
}

func TestVersionsOfSuccessiveObjectsOfOneNameAreSentInOneOrder(t *testing.T) {
	t.Parallel()
	every := func() *watcher.Ledger { return watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10}) }
	for name, tc := range map[string]struct {
		ledger func() *watcher.Ledger
		does   func(l *watcher.Ledger)
		want   []string
	}{
		"every version": {every, func(l *watcher.Ledger) {
			l.Observe(live("a", 1))
			l.Observe(live("a", 2))
			l.Observe(dead("a", 3))
			l.Observe(again(live("a", 4)))
			l.Observe(again(live("a", 5)))
		}, []string{"a@1", "a@2", "a@3 deleted", "a@4", "a@5"}},
		"the latest of each": {watcher.NewLedger, func(l *watcher.Ledger) {
			l.Observe(live("a", 1))
			l.Observe(dead("a", 3))
			l.Observe(again(live("a", 4)))
			l.Observe(again(live("a", 5)))
		}, []string{"a@3 deleted", "a@5"}},
		"the first was there when the term began": {every, func(l *watcher.Ledger) {
			l.Baseline(live("a", 1))
			l.Observe(live("a", 2))
			l.Observe(dead("a", 3))
			l.Observe(again(live("a", 4)))
		}, []string{"a@1 first", "a@2", "a@3 deleted", "a@4"}},
		"the deletion was missed": {every, func(l *watcher.Ledger) {
			l.Observe(live("a", 1))
			l.Vanished(dead("a", 1))
			s := again(live("a", 4))
			s.Occasion = watcher.Found
			l.Observe(s)
		}, []string{"a@1", "a@1 deleted", "a@4 first"}},
		"only a listing knows of the second": {every, func(l *watcher.Ledger) {
			l.Observe(live("a", 1))
			l.Join("r", listed(9, again(live("a", 4))), epoch())
			l.Observe(dead("a", 3))
		}, []string{"a@1", "a@1 deleted", "a@4 of r"}},
		"only a listing knows of the second, and the latest counts": {watcher.NewLedger, func(l *watcher.Ledger) {
			l.Baseline(live("a", 1))
			l.Join("r", listed(9, again(live("a", 4))), epoch())
		}, []string{"a@1 deleted", "a@4 of r"}},
		"the watch is ahead of a listing": {every, func(l *watcher.Ledger) {
			l.Observe(live("a", 1))
			l.Observe(dead("a", 12))
			l.Observe(again(live("a", 14)))
			l.Join("r", listed(9, live("a", 1)), epoch())
		}, []string{"a@1", "a@12 deleted", "a@14 of r"}},
		"the second is told no more": {every, func(l *watcher.Ledger) {
			l.Observe(live("a", 1))
			l.Observe(dead("a", 3))
			l.Observe(again(live("a", 4)))
			l.Observe(again(live("a", 5)))
			l.Drop(again(live("a", 5)).Key)
		}, []string{"a@1", "a@3 deleted"}},
		"no room": {func() *watcher.Ledger { return watcher.NewHistoricLedger(watcher.Bounds{PerObject: 2, Total: 9}) }, func(l *watcher.Ledger) {
			l.Observe(live("a", 1))
			l.Observe(live("a", 2))
			l.Observe(dead("a", 3))
			l.Observe(again(live("a", 4)))
			l.Observe(again(live("a", 5)))
			l.Observe(again(live("a", 6)))
		}, []string{"a@1", "a@3 deleted after 1", "a@6 after 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := tc.ledger()
			tc.does(l)
			require.Equal(t, tc.want, sent(t, l))
			require.Zero(t, l.Outstanding())
			owed, _ := l.Backlog()
			require.Zero(t, owed)
		})
	}
}

func TestASuccessorWaitsWhileAVersionBeforeItFails(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]*watcher.Ledger{
		"every version": watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10}), "the latest": watcher.NewLedger(),
	} {
		l.Observe(dead("a", 3))
		d, _ := next(t, l)
		l.Observe(again(live("a", 4)))
		require.Empty(t, sent(t, l), "%s: the deletion is in flight", name)
		l.Failed(d, epoch().Add(time.Second))
		require.Empty(t, sent(t, l), "%s: it is sent again later", name)
		l.Hurry(epoch())
		require.Equal(t, []string{"a@3 deleted", "a@4"}, sent(t, l), name)
	}
}

func TestWhatIsToldNoMoreWhileInFlightIsForgottenWhenItLands(t *testing.T) {
	t.Parallel()
	for name, land := range map[string]func(l *watcher.Ledger, d watcher.Delivery){
		"acknowledged": func(l *watcher.Ledger, d watcher.Delivery) { l.Acked(d, epoch()) },
		"failed":       func(l *watcher.Ledger, d watcher.Delivery) { l.Failed(d, epoch()) },
	} {
		l := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 10})
		l.Observe(live("a", 1))
		d, _ := next(t, l)
		l.Observe(live("a", 2))
		l.Drop(d.Key)
		require.Empty(t, sent(t, l), name)
		land(l, d)
		require.Empty(t, sent(t, l), name)
		require.Zero(t, l.Size(), name)
	}
}
