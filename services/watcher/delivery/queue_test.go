package delivery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
)

func TestLatestVersionIsPublishedOnce(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 9))
	q.Add(upserted("a", 10))
	q.Add(upserted("b", 11))
	require.Equal(t, "a@10", publish(t, q), "9 is superseded; versions are numbers")
	require.Equal(t, "b@11", publish(t, q))
	q.Add(upserted("a", 10))
	q.Add(upserted("a", 9))
	require.Empty(t, publish(t, q), "one is acknowledged, one is older")
	pending, _ := q.Pending()
	require.Zero(t, pending)
}

func TestOneVersionOfAnObjectIsInFlight(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 1))
	first, text := next(t, q)
	require.Equal(t, "a@1", text)
	q.Add(upserted("a", 2))
	q.Add(upserted("a", 3))
	require.Empty(t, publish(t, q), "1 is in flight")
	q.Acked(first, epoch())
	require.Equal(t, "a@3", publish(t, q))
}

func TestFailedVersionIsRetriedAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 1))
	q.Add(upserted("b", 2))
	d, _ := next(t, q)
	require.Equal(t, 1, d.Attempt)
	q.Failed(d, epoch().Add(time.Second))
	q.Add(upserted("a", 3))
	require.Equal(t, "b@2", publish(t, q), "a failed version delays no other")
	_, due, ok := q.Next(epoch())
	require.False(t, ok)
	require.Equal(t, epoch().Add(time.Second), due)
	d, _, ok = q.Next(due)
	require.True(t, ok)
	require.Equal(t, "3", d.ResourceVersion)
	q.Failed(d, epoch().Add(time.Hour))
	q.RetryNow(epoch())
	d, text := next(t, q)
	require.Equal(t, "a@3", text)
	require.Equal(t, 2, d.Attempt)
	pending, since := q.Pending()
	require.Equal(t, 1, pending)
	require.Equal(t, epoch(), since)
}

func TestDeletionIsPublishedAndForgotten(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 1))
	require.Equal(t, "a@1", publish(t, q))
	q.Add(deleted("a", 5))
	q.Add(upserted("a", 4))
	require.Equal(t, "a@5 deleted", publish(t, q))
	require.Zero(t, q.Len())
	q.Add(deleted("b", 6))
	require.Equal(t, "b@6 deleted", publish(t, q), "an earlier session may have published it")
}

func TestMissedDeletionHasTheLastKnownVersion(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 7))
	require.Equal(t, "a@7", publish(t, q))
	q.Add(with(object.Missed, deleted("a", 3)))
	require.Equal(t, "a@7 deleted", publish(t, q), "not below a published version")
}

func TestInitialObjectsWaitForTheFirstResync(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(with(object.Initial, upserted("a", 1)))
	q.Add(with(object.Initial, upserted("b", 2)))
	q.Add(with(object.Initial, upserted("c", 3)))
	require.Empty(t, publish(t, q))
	q.Add(upserted("b", 4))
	require.Equal(t, "b@4 first", publish(t, q), "it changed before the resync")
	q.Add(upserted("d", 5))
	q.Pause()
	require.Empty(t, publish(t, q))
	q.StartResync("r", listed(6, upserted("a", 1), upserted("b", 4), upserted("d", 5), upserted("e", 6)), epoch())
	require.Equal(t, 4, q.Outstanding())
	sent := publishAll(t, q)
	require.ElementsMatch(t, []string{"a@1 first of r", "b@4 of r", "d@5 of r", "e@6 of r", "c@3 deleted"}, sent,
		"e was created during the session; c is not listed, so it is deleted")
	require.Zero(t, q.Outstanding())
	require.Equal(t, 4, q.Len())
}

func TestSeveralMembersAreTakenAtOnce(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	members := []object.Version{upserted("a", 1), upserted("b", 2), upserted("c", 3), upserted("d", 4)}
	for _, m := range members {
		q.Add(with(object.Initial, m))
	}
	q.StartResync("r", listed(4, members...), epoch())
	first := q.Members(3)
	require.Len(t, first, 3)
	q.Add(upserted("a", 5))
	q.Add(upserted("d", 6))
	require.Equal(t, "d@6 first of r", publish(t, q), "a change is published before the members, and counts as one")
	require.Empty(t, publish(t, q), "a is in flight")
	q.Acked(first[0], epoch())
	require.Equal(t, "a@5", publish(t, q))
	q.Failed(first[1], epoch().Add(time.Second))
	q.Acked(first[2], epoch())
	require.Empty(t, q.Members(3), "b is delayed")
	q.RetryNow(epoch())
	again := q.Members(3)
	require.Len(t, again, 1)
	require.Equal(t, 2, again[0].Attempt)
	q.Acked(again[0], epoch())
	require.Zero(t, q.Outstanding())

	q.StartResync("s", listed(6, members[:3]...), epoch())
	for _, m := range q.Members(3) {
		require.Equal(t, 1, m.Attempt, "of this resync")
	}
}

func TestMembersArePublishedInTheLatestVersion(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	for i, name := range []string{"a", "b", "c"} {
		q.Add(upserted(name, i+1))
		publish(t, q)
	}
	q.Pause()
	q.Add(upserted("b", 5))
	q.Add(deleted("c", 6))
	q.Add(upserted("n", 7))
	q.StartResync("r", listed(4, upserted("a", 1), upserted("b", 2), upserted("c", 3)), epoch())
	sent := publishAll(t, q)
	require.ElementsMatch(t, []string{"a@1 of r", "b@5 of r", "c@6 deleted of r", "n@7"}, sent)
}

// TestMembersOfAnInterruptedResyncAreForgotten begins a full resync before the members of the one before it are
// published.
func TestMembersOfAnInterruptedResyncAreForgotten(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.StartResync("r1", listed(2, upserted("a", 1), upserted("b", 2)), epoch())
	q.StartResync("r2", listed(3, upserted("a", 1)), epoch())
	require.Equal(t, 1, q.Outstanding())
	require.True(t, q.Exists(upserted("a", 1).Key()))
	require.False(t, q.Exists(upserted("b", 2).Key()), "it is deleted: it is not listed")
}

func TestListedVersionsRaiseTheHighest(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	kind := upserted("a", 5).Kind
	q.StartResync("r1", listed(6, upserted("a", 5)), epoch())
	require.Equal(t, "5", q.Highest(kind), "of a new object")
	q.StartResync("r2", listed(8, upserted("a", 7)), epoch())
	require.Equal(t, "7", q.Highest(kind), "of a known object")
	require.Equal(t, "7", q.KnownVersions()[kind])
}

func TestChangesDuringTheListArePublishedAtOnceAndAgainAfterTheBegin(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	for i, name := range []string{"a", "b", "c"} {
		q.Add(upserted(name, i+1))
		publish(t, q)
	}
	q.BeginList()
	list := listed(4, upserted("a", 1), upserted("b", 2), upserted("c", 3))
	q.Add(upserted("a", 5))
	q.Add(deleted("b", 6))
	q.Add(upserted("n", 7))
	q.Add(upserted("o", 8))
	q.Add(deleted("o", 9))
	require.Equal(t, []string{"a@5", "b@6 deleted", "n@7", "o@9 deleted"}, publishAll(t, q))
	q.Add(upserted("p", 10))
	inFlight, _ := next(t, q)
	q.Pause()
	require.Equal(t, map[object.Kind]string{object.Deployment: "10"}, q.KnownVersions())
	q.StartResync("r", list, epoch())
	sent := publishAll(t, q)
	q.Acked(inFlight, epoch())
	require.ElementsMatch(t, []string{"a@5 of r", "b@6 deleted of r", "c@3 of r", "n@7"}, sent,
		"the reader may have begun another epoch")
	require.Equal(t, []string{"p@10"}, publishAll(t, q), "it may be stored before the begin")
	require.Equal(t, 4, q.Len(), "what is deleted is forgotten")
}

func TestFailedListForgetsWhatWasDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 1))
	publish(t, q)
	q.BeginList()
	q.Add(deleted("a", 2))
	require.Equal(t, "a@2 deleted", publish(t, q))
	require.Equal(t, 1, q.Len())
	q.EndList()
	require.Zero(t, q.Len())
}

func TestMemberInFlightAsPartialIsPublishedAgain(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 1))
	d, _ := next(t, q)
	q.StartResync("r", listed(1, upserted("a", 1)), epoch())
	q.Acked(d, epoch())
	require.Equal(t, 1, q.Outstanding(), "the acknowledgement is for a partial")
	require.Equal(t, "a@1 of r", publish(t, q))
	require.Zero(t, q.Outstanding())
}

func TestTooLargeVersionIsRejected(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	q.Add(upserted("a", 1))
	d, _ := next(t, q)
	q.TooLarge(d, epoch())
	d, text := next(t, q)
	require.Equal(t, "a@1", text)
	require.True(t, d.TooLarge)
	q.Acked(d, epoch())
	q.Add(upserted("a", 2))
	d, _ = next(t, q)
	require.False(t, d.TooLarge, "the next version may fit")
}

func TestHeldReturnsTheObjectOfTheLatestVersion(t *testing.T) {
	t.Parallel()
	q := delivery.New(delivery.Bounds{})
	s := upserted("a", 1)
	q.Add(s)
	require.Same(t, s.Object, q.Held(s.Key(), "1"))
	require.Nil(t, q.Held(s.Key(), "2"))
	require.Equal(t, "1", q.Highest(object.Deployment))
}
