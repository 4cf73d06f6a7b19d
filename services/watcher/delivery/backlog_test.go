package delivery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
)

func TestEveryVersionIsPublishedInOrder(t *testing.T) {
	t.Parallel()
	q := delivery.New(bounds())
	q.Add(with(object.Initial, upserted("a", 1)))
	require.Empty(t, publishAll(t, q), "initial objects wait for the first resync")
	q.Add(upserted("a", 2))
	q.Add(upserted("a", 3))
	q.Add(upserted("b", 4))
	q.Add(deleted("a", 5))
	require.Equal(t, []string{"a@1 first", "b@4", "a@2", "a@3", "a@5 deleted"}, publishAll(t, q), "names alternate")
	require.Equal(t, 1, q.Len())
}

func TestFailedVersionIsPublishedBeforeTheNext(t *testing.T) {
	t.Parallel()
	q := delivery.New(bounds())
	q.Add(upserted("a", 1))
	d, _ := next(t, q)
	q.Add(upserted("a", 2))
	q.Failed(d, epoch().Add(time.Second))
	require.Empty(t, publishAll(t, q))
	q.RetryNow(epoch())
	d, text := next(t, q)
	require.Equal(t, "a@1", text)
	require.Equal(t, 2, d.Attempt)
	q.Acked(d, epoch())
	d, text = next(t, q)
	require.Equal(t, "a@2", text)
	require.Equal(t, 1, d.Attempt)
}

func TestMemberWaitsForEarlierVersions(t *testing.T) {
	t.Parallel()
	q := delivery.New(bounds())
	q.Add(upserted("a", 1))
	q.Pause()
	q.Add(upserted("a", 2))
	q.Add(upserted("a", 3))
	q.Add(upserted("gone", 3))
	q.StartResync("r", listed(4, upserted("a", 3)), epoch())
	q.Add(upserted("a", 5))
	require.ElementsMatch(t, []string{"a@1", "gone@3", "a@2", "gone@3 deleted", "a@3", "a@5 of r"}, publishAll(t, q))
	require.Zero(t, q.Outstanding())
}

func TestDroppedVersionsAreCountedInTheNext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		bounds   delivery.Bounds
		inFlight bool
		want     []string
	}{
		"room for all":                {bounds: delivery.Bounds{PerName: 9, Total: 9}, want: []string{"a@1", "a@2", "a@3", "a@4", "a@5", "a@6", "a@7", "a@8"}},
		"the middle is dropped":       {bounds: delivery.Bounds{PerName: 4, Total: 9}, want: []string{"a@1", "a@2", "a@6 skipped 3", "a@7", "a@8"}},
		"room for one":                {bounds: delivery.Bounds{PerName: 1, Total: 9}, want: []string{"a@1", "a@8 skipped 6"}},
		"the version in flight stays": {bounds: delivery.Bounds{PerName: 1, Total: 9}, inFlight: true, want: []string{"a@1", "a@8 skipped 6"}},
		"no room at all":              {bounds: delivery.Bounds{PerName: 9, Total: 0}, want: []string{"a@8 skipped 7"}},
		"no room, one in flight":      {bounds: delivery.Bounds{PerName: 9, Total: 0}, inFlight: true, want: []string{"a@1", "a@8 skipped 6"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := delivery.New(tc.bounds)
			q.Add(upserted("a", 1))
			var flying delivery.Delivery
			if tc.inFlight {
				flying, _ = next(t, q)
			}
			for version := 2; version <= 8; version++ {
				q.Add(upserted("a", version))
			}
			if tc.inFlight {
				q.Failed(flying, epoch())
			}
			require.Equal(t, tc.want, publishAll(t, q))
			q.Add(upserted("a", 9))
			require.Equal(t, []string{"a@9"}, publishAll(t, q), "counted once")
		})
	}
}

func TestTotalLimitsAllNamesTogether(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{PerName: 10, Total: 3})
	for version := 1; version <= 4; version++ {
		q.Add(upserted("a", version))
	}
	q.Add(upserted("b", 5))
	q.Add(upserted("b", 6))
	require.Equal(t, []string{"a@1", "b@6 skipped 1", "a@2", "a@3", "a@4"}, publishAll(t, q))
	q.Add(upserted("b", 7))
	q.Add(upserted("b", 8))
	require.Equal(t, []string{"b@7", "b@8"}, publishAll(t, q), "there is room again")
}

func TestBehindCountsWhatTheWatchHasNotReported(t *testing.T) {
	t.Parallel()
	q := delivery.New(bounds())
	q.Add(upserted("a", 1))
	q.Add(upserted("gone", 2))
	listing := listed(9, upserted("a", 4), upserted("new", 5))
	require.Equal(t, 3, q.Behind(listing))
	q.Add(upserted("a", 3))
	require.Equal(t, 3, q.Behind(listing))
	q.Add(upserted("a", 4))
	q.Add(upserted("new", 5))
	require.Equal(t, 1, q.Behind(listing))
	q.Add(deleted("gone", 6))
	require.Zero(t, q.Behind(listing))
	coalescing := delivery.New(delivery.Bounds{})
	require.Zero(t, coalescing.Behind(listing), "only the latest version counts")
}

// A watch that starts again after the list knows that the object was deleted.
func TestListDoesNotRestoreADeletedObject(t *testing.T) {
	t.Parallel()
	q := delivery.New(bounds())
	q.Add(upserted("a", 1))
	require.Equal(t, []string{"a@1"}, publishAll(t, q))
	q.Pause()
	q.Add(with(object.Missed, deleted("a", 1)))
	q.StartResync("r", listed(4, upserted("a", 3)), epoch())
	require.Equal(t, []string{"a@3", "a@3 deleted of r"}, publishAll(t, q))
	require.Zero(t, q.Len())
}

func TestVersionsOfSuccessiveObjectsArePublishedInOneOrder(t *testing.T) {
	t.Parallel()
	every := func() *delivery.Queue { return delivery.New(bounds()) }
	latest := func() *delivery.Queue { return delivery.New(delivery.Bounds{}) }
	for name, tc := range map[string]struct {
		queue func() *delivery.Queue
		does  func(q *delivery.Queue)
		want  []string
	}{
		"every version": {every, func(q *delivery.Queue) {
			q.Add(upserted("a", 1))
			q.Add(upserted("a", 2))
			q.Add(deleted("a", 3))
			q.Add(successor(4))
			q.Add(successor(5))
		}, []string{"a@1", "a@2", "a@3 deleted", "a@4", "a@5"}},
		"the latest of each": {latest, func(q *delivery.Queue) {
			q.Add(upserted("a", 1))
			q.Add(deleted("a", 3))
			q.Add(successor(4))
			q.Add(successor(5))
		}, []string{"a@3 deleted", "a@5"}},
		"the first is an initial object": {every, func(q *delivery.Queue) {
			q.Add(with(object.Initial, upserted("a", 1)))
			q.Add(upserted("a", 2))
			q.Add(deleted("a", 3))
			q.Add(successor(4))
		}, []string{"a@1 first", "a@2", "a@3 deleted", "a@4"}},
		"the deletion was missed": {every, func(q *delivery.Queue) {
			q.Add(upserted("a", 1))
			q.Add(with(object.Missed, deleted("a", 1)))
			q.Add(with(object.Found, successor(4)))
		}, []string{"a@1", "a@1 deleted", "a@4 first"}},
		"the second is only listed": {every, func(q *delivery.Queue) {
			q.Add(upserted("a", 1))
			q.StartResync("r", listed(9, successor(4)), epoch())
			q.Add(deleted("a", 3))
		}, []string{"a@1", "a@1 deleted", "a@4 of r"}},
		"the second is only listed, latest versions": {latest, func(q *delivery.Queue) {
			q.Add(with(object.Initial, upserted("a", 1)))
			q.StartResync("r", listed(9, successor(4)), epoch())
		}, []string{"a@1 deleted", "a@4 of r"}},
		"the watch is ahead of the list": {every, func(q *delivery.Queue) {
			q.Add(upserted("a", 1))
			q.Add(deleted("a", 12))
			q.Add(successor(14))
			q.StartResync("r", listed(9, upserted("a", 1)), epoch())
		}, []string{"a@1", "a@12 deleted", "a@14 of r"}},
		"the second is no longer reported": {every, func(q *delivery.Queue) {
			q.Add(upserted("a", 1))
			q.Add(deleted("a", 3))
			q.Add(successor(4))
			q.Add(successor(5))
			q.Add(with(object.Unreported, successor(5)))
		}, []string{"a@1", "a@3 deleted"}},
		"no room": {
			func() *delivery.Queue { return delivery.New(delivery.Bounds{PerName: 2, Total: 9}) },
			func(q *delivery.Queue) {
				q.Add(upserted("a", 1))
				q.Add(upserted("a", 2))
				q.Add(deleted("a", 3))
				q.Add(successor(4))
				q.Add(successor(5))
				q.Add(successor(6))
			},
			[]string{"a@1", "a@3 deleted skipped 1", "a@6 skipped 2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := tc.queue()
			tc.does(q)
			require.Equal(t, tc.want, publishAll(t, q))
			require.Zero(t, q.Outstanding())
			pending, _ := q.Pending()
			require.Zero(t, pending)
		})
	}
}

func TestSuccessorWaitsWhileAnEarlierVersionFails(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]*delivery.Queue{
		"every version": delivery.New(bounds()), "the latest": delivery.New(delivery.Bounds{}),
	} {
		q.Add(deleted("a", 3))
		d, _ := next(t, q)
		q.Add(successor(4))
		require.Empty(t, publishAll(t, q), "%s: the deletion is in flight", name)
		q.Failed(d, epoch().Add(time.Second))
		require.Empty(t, publishAll(t, q), "%s: it is sent again later", name)
		q.RetryNow(epoch())
		require.Equal(t, []string{"a@3 deleted", "a@4"}, publishAll(t, q), name)
	}
}

func TestObjectThatLeftInFlightIsForgottenWhenSettled(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(q *delivery.Queue, d delivery.Delivery){
		"acknowledged": func(q *delivery.Queue, d delivery.Delivery) { q.Acked(d, epoch()) },
		"failed":       func(q *delivery.Queue, d delivery.Delivery) { q.Failed(d, epoch()) },
	} {
		q := delivery.New(bounds())
		q.Add(upserted("a", 1))
		d, _ := next(t, q)
		q.Add(upserted("a", 2))
		q.Add(with(object.Unreported, d.Version))
		require.Empty(t, publishAll(t, q), name)
		settle(q, d)
		require.Empty(t, publishAll(t, q), name)
		require.Zero(t, q.Len(), name)
	}
}
