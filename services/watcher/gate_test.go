package watcher_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher"
	"lockstep.internal/services/watcher/kube"
)

// gated is a gate before a ledger, as a scope has them.
type gated struct {
	t      *testing.T
	gate   *watcher.Gate
	ledger *watcher.Ledger
}

func newGated(t *testing.T) *gated {
	t.Helper()
	ledger := watcher.NewHistoricLedger(watcher.Bounds{PerObject: 10, Total: 100})
	return &gated{t: t, gate: watcher.NewGate(ledger.Alive), ledger: ledger}
}

func identified(name, uid string, version int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)}
}

func workloadSeen(name string, version int, followed bool) watcher.Sighting {
	o := &kube.Workload{ObjectMeta: identified(name, "uid-"+name, version), Kind: kube.Deployment, Followed: followed}
	return watcher.Sighting{Key: watcher.KeyOf(kube.Deployment, o), Version: o.ResourceVersion, Verb: events.VerbUpserted, Object: o, SeenAt: epoch()}
}

// revisionOf is a ReplicaSet of a workload, of none where owner is empty.
func revisionOf(owner, name string, version int) watcher.Sighting {
	o := &kube.Revision{ObjectMeta: identified(name, "uid-"+name, version), Kind: kube.ReplicaSet}
	if owner != "" {
		o.Owner = kube.Owner{Kind: kube.Deployment, Name: owner, UID: "uid-" + owner}
	}
	return watcher.Sighting{Key: watcher.KeyOf(kube.ReplicaSet, o), Version: o.ResourceVersion, Verb: events.VerbUpserted, Object: o, SeenAt: epoch()}
}

func initially(s watcher.Sighting) watcher.Sighting {
	s.Occasion = watcher.Initial
	return s
}

func gone(s watcher.Sighting) watcher.Sighting {
	s.Verb = events.VerbDeleted
	return s
}

func (g *gated) sees(sightings ...watcher.Sighting) {
	g.t.Helper()
	for _, s := range sightings {
		for _, admitted := range g.gate.Admit(s) {
			g.ledger.Enter(admitted)
		}
	}
}

// tells is all that is sent now, in order.
func (g *gated) tells() []string {
	g.t.Helper()
	sent := []string{}
	for {
		d, text := next(g.t, g.ledger)
		if text == "" {
			return sent
		}
		if d.Unselected {
			text += " unselected"
		}
		g.ledger.Acked(d, epoch())
		sent = append(sent, text)
	}
}

// resyncs runs a full resync of what is listed, and returns what was sent.
func (g *gated) resyncs(id string, version int, listed ...watcher.Sighting) []string {
	g.t.Helper()
	listings := []watcher.Listed{{Kind: kube.ReplicaSet, Version: strconv.Itoa(version)}, {Kind: kube.Deployment, Version: strconv.Itoa(version)}}
	for _, s := range listed {
		at := 0
		if s.Kind == kube.Deployment {
			at = 1
		}
		listings[at].Members = append(listings[at].Members, s)
	}
	for _, other := range g.gate.Sift(listings) {
		g.ledger.Enter(other)
	}
	g.ledger.Join(id, listings, epoch())
	sent := g.tells()
	require.Zero(g.t, g.ledger.Outstanding())
	return sent
}

func TestTheGateLetsARevisionPassOnceItsWorkloadIsKnown(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.sees(revisionOf("web", "web-1", 5))
	require.Empty(t, g.tells(), "whose it is, is not known")
	g.sees(revisionOf("web", "web-1", 6))
	g.sees(workloadSeen("web", 4, true))
	require.Equal(t, []string{"web@4", "web-1@6"}, g.tells(), "the latest version of what waited")
	g.sees(revisionOf("web", "web-2", 7))
	require.Equal(t, []string{"web-2@7"}, g.tells(), "the other order")
	g.sees(revisionOf("", "bare", 8), gone(revisionOf("", "bare", 9)), gone(revisionOf("other", "other-1", 9)))
	require.Empty(t, g.tells(), "of no workload")
	g.sees(gone(revisionOf("web", "web-1", 10)), gone(workloadSeen("web", 11, true)))
	require.Equal(t, []string{"web-1@10 deleted", "web@11 deleted"}, g.tells())
	g.sees(gone(revisionOf("web", "web-2", 12)))
	require.Equal(t, []string{"web-2@12 deleted"}, g.tells(), "after its workload")
	require.Zero(t, g.ledger.Size())
}

func TestTheGateKnowsWhatWasThere(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.sees(initially(revisionOf("old", "old-1", 1)), initially(workloadSeen("old", 2, true)), revisionOf("old", "old-2", 5))
	g.sees(workloadSeen("young", 3, true), initially(revisionOf("young", "young-1", 4)))
	g.sees(initially(revisionOf("late", "late-1", 6)), workloadSeen("late", 5, true))
	require.Equal(t, []string{"old-2@5", "young@3", "young-1@4", "late@5", "late-1@6"}, g.tells(),
		"a revision that a slower listing had is no older than its workload, which was seen to come to be")
	require.ElementsMatch(t, []string{
		"old@2 first of r", "old-1@1 first of r", "old-2@5 of r", "young@3 of r", "young-1@4 of r", "late@5 of r", "late-1@6 of r",
	}, g.resyncs("r", 9, revisionOf("old", "old-1", 1), revisionOf("old", "old-2", 5), revisionOf("young", "young-1", 4), revisionOf("late", "late-1", 6),
		workloadSeen("old", 2, true), workloadSeen("young", 3, true), workloadSeen("late", 5, true)))
}

func TestWhatLeavesTheSelectionIsToldOnce(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.sees(initially(workloadSeen("other", 1, false)), initially(revisionOf("other", "other-1", 2)))
	g.sees(workloadSeen("web", 3, true), revisionOf("web", "web-1", 4))
	require.Equal(t, []string{"web@3", "web-1@4"}, g.tells())

	g.sees(workloadSeen("web", 5, false))
	require.Equal(t, []string{"web@5 deleted unselected"}, g.tells())
	g.sees(workloadSeen("web", 6, false), revisionOf("web", "web-1", 7), revisionOf("web", "web-2", 8), gone(revisionOf("web", "web-2", 9)))
	require.Empty(t, g.tells(), "none of our business")
	require.Zero(t, g.ledger.Size())

	g.sees(workloadSeen("web", 10, true), workloadSeen("other", 11, true))
	require.Equal(t, []string{"web@10 first", "web-1@7 first", "other@11 first", "other-1@2 first"}, g.tells(), "found, not made")
	g.sees(revisionOf("web", "web-3", 12))
	require.Equal(t, []string{"web-3@12"}, g.tells())

	g.sees(workloadSeen("web", 13, false), gone(workloadSeen("web", 14, false)))
	require.Equal(t, []string{"web@13 deleted unselected"}, g.tells(), "that it is gone then is told to nobody")
}

func TestWhatLeavesAndComesBackWhileNothingCanBeSent(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.sees(workloadSeen("web", 3, true), revisionOf("web", "web-1", 4))
	g.sees(workloadSeen("web", 5, false), workloadSeen("web", 6, true), workloadSeen("web", 7, true))
	require.ElementsMatch(t, []string{"web@3", "web@5 deleted unselected", "web@6 first", "web@7", "web-1@4 first"}, g.tells())
	require.ElementsMatch(t, []string{"web@7 of r", "web-1@4 of r"}, g.resyncs("r", 9, revisionOf("web", "web-1", 4), workloadSeen("web", 7, true)))
}

func TestAFullResyncGoesByWhatItListed(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.sees(workloadSeen("web", 3, true), revisionOf("web", "web-1", 4), workloadSeen("left", 3, true), revisionOf("left", "left-1", 4), workloadSeen("dead", 3, true))
	g.tells()
	// The watch lags behind: it has not told that "left" has left, of "new" at all, and that "dead" is.
	require.ElementsMatch(t, []string{"web@3 of r", "web-1@4 of r", "left@8 deleted unselected", "new@6 of r", "new-1@7 of r", "dead@3 deleted"},
		g.resyncs("r", 9, revisionOf("web", "web-1", 4), revisionOf("left", "left-1", 4), revisionOf("new", "new-1", 7), revisionOf("", "bare", 1),
			revisionOf("unlisted", "unlisted-1", 5), workloadSeen("web", 3, true), workloadSeen("left", 8, false), workloadSeen("new", 6, true), workloadSeen("never", 2, false)))
	g.sees(workloadSeen("left", 8, false), revisionOf("new", "new-1", 7), workloadSeen("new", 6, true), gone(workloadSeen("dead", 5, true)))
	require.Empty(t, g.tells(), "all known")
	g.sees(gone(revisionOf("new", "new-1", 12)))
	require.Equal(t, []string{"new-1@12 deleted"}, g.tells())
}

func TestADeletionIsToldThoughTheWatchHasNotToldOfTheWorkload(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	require.ElementsMatch(t, []string{"new@6 of r", "new-1@7 of r"}, g.resyncs("r", 9, revisionOf("new", "new-1", 7), workloadSeen("new", 6, true)))
	g.sees(gone(revisionOf("new", "new-1", 12)))
	require.Equal(t, []string{"new-1@12 deleted"}, g.tells())
}

func TestARevisionThatIsAMemberAndLeavesIsSentAllTheSame(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	web, first := workloadSeen("web", 3, true), revisionOf("web", "web-1", 4)
	g.sees(web, first)
	g.tells()
	g.ledger.Join("r", []watcher.Listed{
		{Kind: kube.ReplicaSet, Version: "9", Members: []watcher.Sighting{first}}, {Kind: kube.Deployment, Version: "9", Members: []watcher.Sighting{web}},
	}, epoch())
	g.sees(workloadSeen("web", 10, false))
	require.ElementsMatch(t, []string{"web@10 deleted of r unselected", "web-1@4 of r"}, g.tells(), "what was announced comes")
	require.Zero(t, g.ledger.Outstanding())
	require.Empty(t, g.resyncs("s", 11, first, workloadSeen("web", 10, false)))
	require.Zero(t, g.ledger.Size())
}
