package watcher_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher"
	"lockstep.internal/services/watcher/kube"
)

func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func deployment(name, uid string, version int) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)}}
}

func sighting(name string, version int, verb events.Verb) watcher.Sighting {
	o := deployment(name, "uid-"+name, version)
	return watcher.Sighting{Key: watcher.KeyOf(kube.Deployment, o), Version: strconv.Itoa(version), Verb: verb, Object: o, SeenAt: epoch()}
}

func live(name string, version int) watcher.Sighting {
	return sighting(name, version, events.VerbUpserted)
}

func dead(name string, version int) watcher.Sighting {
	return sighting(name, version, events.VerbDeleted)
}

func listed(version int, members ...watcher.Sighting) []watcher.Listed {
	return []watcher.Listed{{Kind: kube.Deployment, Version: strconv.Itoa(version), Members: members}}
}

// next is the name, version, verb and, for a member, resync of what is to be sent, empty when nothing is.
func next(t *testing.T, l *watcher.Ledger) (watcher.Delivery, string) {
	t.Helper()
	d, _, ok := l.Next(epoch())
	if !ok {
		return d, ""
	}
	text := d.Name + "@" + d.Version
	if d.Verb == events.VerbDeleted {
		text += " deleted"
	}
	if d.FirstSeen {
		text += " first"
	}
	if d.ResyncID != "" {
		text += " of " + d.ResyncID
	}
	return d, text
}

func send(t *testing.T, l *watcher.Ledger) string {
	t.Helper()
	d, text := next(t, l)
	if text != "" {
		l.Acked(d, epoch())
	}
	return text
}

func TestLedgerSendsTheLatestVersionOnce(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Observe(live("a", 9))
	l.Observe(live("a", 10))
	l.Observe(live("b", 11))
	require.Equal(t, "a@10", send(t, l), "9 is never sent, and versions are no strings")
	require.Equal(t, "b@11", send(t, l))
	l.Observe(live("a", 10))
	l.Observe(live("a", 9))
	require.Empty(t, send(t, l), "acknowledged, and older")
	owed, _ := l.Backlog()
	require.Zero(t, owed)
}

func TestLedgerHasOneVersionInFlight(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Observe(live("a", 1))
	first, text := next(t, l)
	require.Equal(t, "a@1", text)
	l.Observe(live("a", 2))
	l.Observe(live("a", 3))
	require.Empty(t, send(t, l), "1 is in flight")
	l.Acked(first, epoch())
	require.Equal(t, "a@3", send(t, l))
}

func TestLedgerRetriesTheLatest(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Observe(live("a", 1))
	l.Observe(live("b", 2))
	d, _ := next(t, l)
	require.Equal(t, 1, d.Attempt)
	l.Failed(d, epoch().Add(time.Second))
	l.Observe(live("a", 3))
	require.Equal(t, "b@2", send(t, l), "a failed one holds up nobody")
	_, due, ok := l.Next(epoch())
	require.False(t, ok)
	require.Equal(t, epoch().Add(time.Second), due)
	d, _, ok = l.Next(due)
	require.True(t, ok)
	require.Equal(t, "3", d.Version)
	l.Failed(d, epoch().Add(time.Hour))
	l.Hurry(epoch())
	d, text := next(t, l)
	require.Equal(t, "a@3", text)
	require.Equal(t, 2, d.Attempt)
	owed, since := l.Backlog()
	require.Equal(t, 1, owed)
	require.Equal(t, epoch(), since)
}

func TestLedgerSendsADeletionAndForgets(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Observe(live("a", 1))
	require.Equal(t, "a@1", send(t, l))
	l.Observe(dead("a", 5))
	l.Observe(live("a", 4))
	require.Equal(t, "a@5 deleted", send(t, l))
	require.Zero(t, l.Size())
	l.Observe(dead("b", 6))
	require.Equal(t, "b@6 deleted", send(t, l), "what this term never told may have been told by another")
}

func TestLedgerKnowsAMissedDeletionByTheLastVersion(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Observe(live("a", 7))
	require.Equal(t, "a@7", send(t, l))
	l.Vanished(dead("a", 3))
	require.Equal(t, "a@7 deleted", send(t, l), "never below what was told")
}

func TestLedgerKeepsBaselinesForTheFirstResync(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Baseline(live("a", 1))
	l.Baseline(live("b", 2))
	l.Baseline(live("c", 3))
	require.Empty(t, send(t, l))
	l.Observe(live("b", 4))
	require.Equal(t, "b@4 first", send(t, l), "it changed before the resync")
	l.Observe(live("d", 5))
	l.Pause()
	require.Empty(t, send(t, l))
	l.Join("r", listed(6, live("a", 1), live("b", 4), live("d", 5), live("e", 6)), epoch())
	require.Equal(t, 4, l.Outstanding())
	l.Resume()
	var sent []string
	for text := send(t, l); text != ""; text = send(t, l) {
		sent = append(sent, text)
	}
	require.ElementsMatch(t, []string{"a@1 first of r", "b@4 of r", "d@5 of r", "e@6 of r", "c@3 deleted"}, sent,
		"e was created while the term ran: a change; c is not listed: it is gone")
	require.Zero(t, l.Outstanding())
	require.Equal(t, 4, l.Size())
}

func TestLedgerSendsMembersInTheLatestVersion(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	for i, name := range []string{"a", "b", "c"} {
		l.Observe(live(name, i+1))
		send(t, l)
	}
	l.Pause()
	l.Observe(live("b", 5))
	l.Observe(dead("c", 6))
	l.Observe(live("n", 7))
	l.Join("r", listed(4, live("a", 1), live("b", 2), live("c", 3)), epoch())
	l.Resume()
	var sent []string
	for text := send(t, l); text != ""; text = send(t, l) {
		sent = append(sent, text)
	}
	require.ElementsMatch(t, []string{"a@1 of r", "b@5 of r", "c@6 deleted of r", "n@7"}, sent)
}

func TestLedgerOwesAMemberThatIsInFlightAsPartial(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Observe(live("a", 1))
	d, _ := next(t, l)
	l.Join("r", listed(1, live("a", 1)), epoch())
	l.Acked(d, epoch())
	require.Equal(t, 1, l.Outstanding(), "the receipt is of a partial")
	require.Equal(t, "a@1 of r", send(t, l))
	require.Zero(t, l.Outstanding())
}

func TestLedgerTellsThatAVersionIsTooLarge(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	l.Observe(live("a", 1))
	d, _ := next(t, l)
	l.Refused(d, epoch())
	d, text := next(t, l)
	require.Equal(t, "a@1", text)
	require.True(t, d.Refused)
	l.Acked(d, epoch())
	l.Observe(live("a", 2))
	d, _ = next(t, l)
	require.False(t, d.Refused, "the next version may fit")
}

func TestLedgerHoldsOneCopy(t *testing.T) {
	t.Parallel()
	l := watcher.NewLedger()
	s := live("a", 1)
	l.Observe(s)
	require.Same(t, s.Object, l.Held(s.Key, "1"))
	require.Nil(t, l.Held(s.Key, "2"))
	require.Equal(t, "1", l.Highest(kube.Deployment))
}

func atoi(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(version)
	require.NoError(t, err)
	return n
}
