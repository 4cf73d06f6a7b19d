package filter_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRevisionIsPublishedOnceItsWorkloadIsKnown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.observe(revisionOf("web", "web-1", 5))
	require.Empty(t, f.published(), "its workload is unknown")
	f.observe(revisionOf("web", "web-1", 6))
	f.observe(workload("web", 4, true))
	require.Equal(t, []string{"web@4", "web-1@6"}, f.published(), "the latest version of the revision")
	f.observe(revisionOf("web", "web-2", 7))
	require.Equal(t, []string{"web-2@7"}, f.published(), "the other order")
	f.observe(revisionOf("", "bare", 8), deleted(revisionOf("", "bare", 9)), deleted(revisionOf("other", "other-1", 9)))
	require.Empty(t, f.published(), "of no workload")
	f.observe(deleted(revisionOf("web", "web-1", 10)), deleted(workload("web", 11, true)))
	require.Equal(t, []string{"web-1@10 deleted", "web@11 deleted"}, f.published())
	f.observe(deleted(revisionOf("web", "web-2", 12)))
	require.Equal(t, []string{"web-2@12 deleted"}, f.published(), "after its workload")
	require.Zero(t, f.queue.Len())
}

func TestInitialObjectsAreNotChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.observe(initial(revisionOf("old", "old-1", 1)), initial(workload("old", 2, true)), revisionOf("old", "old-2", 5))
	f.observe(workload("young", 3, true), initial(revisionOf("young", "young-1", 4)))
	f.observe(initial(revisionOf("late", "late-1", 6)), workload("late", 5, true))
	require.Equal(t, []string{"old-2@5", "young@3", "young-1@4", "late@5", "late-1@6"}, f.published(),
		"a revision is not older than its workload")
	members := f.resync("r", 9,
		revisionOf("old", "old-1", 1), revisionOf("old", "old-2", 5), revisionOf("young", "young-1", 4),
		revisionOf("late", "late-1", 6),
		workload("old", 2, true), workload("young", 3, true), workload("late", 5, true))
	require.ElementsMatch(t, []string{
		"old@2 first of r",
		"old-1@1 first of r",
		"old-2@5 of r",
		"young@3 of r",
		"young-1@4 of r",
		"late@5 of r",
		"late-1@6 of r",
	}, members)
}

func TestUnselectedWorkloadIsPublishedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.observe(initial(workload("other", 1, false)), initial(revisionOf("other", "other-1", 2)))
	f.observe(workload("web", 3, true), revisionOf("web", "web-1", 4))
	require.Equal(t, []string{"web@3", "web-1@4"}, f.published())

	f.observe(workload("web", 5, false))
	require.Equal(t, []string{"web@5 deleted unselected"}, f.published())
	f.observe(workload("web", 6, false), revisionOf("web", "web-1", 7), revisionOf("web", "web-2", 8),
		deleted(revisionOf("web", "web-2", 9)))
	require.Empty(t, f.published(), "it is not selected")
	require.Zero(t, f.queue.Len())

	f.observe(workload("web", 10, true), workload("other", 11, true))
	require.Equal(t, []string{"web@10 first", "web-1@7 first", "other@11 first", "other-1@2 first"}, f.published(),
		"they existed before")
	f.observe(revisionOf("web", "web-3", 12))
	require.Equal(t, []string{"web-3@12"}, f.published())

	f.observe(workload("web", 13, false), deleted(workload("web", 14, false)))
	require.Equal(t, []string{"web@13 deleted unselected"}, f.published(), "its deletion is not published")
}

func TestWorkloadUnselectedAndSelectedAgainDuringAnOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.observe(workload("web", 3, true), revisionOf("web", "web-1", 4))
	f.observe(workload("web", 5, false), workload("web", 6, true), workload("web", 7, true))
	require.ElementsMatch(t, []string{"web@3", "web@5 deleted unselected", "web@6 first", "web@7", "web-1@4 first"},
		f.published())
	require.ElementsMatch(t, []string{"web@7 of r", "web-1@4 of r"},
		f.resync("r", 9, revisionOf("web", "web-1", 4), workload("web", 7, true)))
}

func TestMembersDependOnlyOnTheLists(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.observe(workload("web", 3, true), revisionOf("web", "web-1", 4), workload("left", 3, true),
		revisionOf("left", "left-1", 4), workload("dead", 3, true))
	f.published()
	// The watch lags behind: it has not reported that "left" is unselected, "new" exists and "dead"
	// is deleted.
	require.ElementsMatch(
		t,
		[]string{"web@3 of r", "web-1@4 of r", "left@8 deleted unselected", "new@6 of r", "new-1@7 of r", "dead@3 deleted"},
		f.resync(
			"r",
			9,
			revisionOf("web", "web-1", 4),
			revisionOf("left", "left-1", 4),
			revisionOf("new", "new-1", 7),
			revisionOf("", "bare", 1),
			revisionOf("unlisted", "unlisted-1", 5),
			workload("web", 3, true),
			workload("left", 8, false),
			workload("new", 6, true),
			workload("never", 2, false),
		),
	)
	f.observe(workload("left", 8, false), revisionOf("new", "new-1", 7), workload("new", 6, true),
		deleted(workload("dead", 5, true)))
	require.Empty(t, f.published(), "all of it is published")
	f.observe(deleted(revisionOf("new", "new-1", 12)))
	require.Equal(t, []string{"new-1@12 deleted"}, f.published())
}

func TestDeletionIsPublishedBeforeTheWatchReportsTheWorkload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ElementsMatch(t, []string{"new@6 of r", "new-1@7 of r"},
		f.resync("r", 9, revisionOf("new", "new-1", 7), workload("new", 6, true)))
	f.observe(deleted(revisionOf("new", "new-1", 12)))
	require.Equal(t, []string{"new-1@12 deleted"}, f.published())
}

func TestMemberThatLeftIsPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	web, first := workload("web", 3, true), revisionOf("web", "web-1", 4)
	f.observe(web, first)
	f.published()
	f.startResync("r", 9, false, first, web)
	f.observe(workload("web", 10, false))
	require.ElementsMatch(t, []string{"web@10 deleted of r unselected", "web-1@4 of r"}, f.published(),
		"an announced member is published")
	require.Zero(t, f.queue.Outstanding())
	require.Empty(t, f.resync("s", 11, first, workload("web", 10, false)))
	require.Zero(t, f.queue.Len())
}
