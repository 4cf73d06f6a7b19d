package activity

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	workspace = "id"
	ada, eve  = 1, 2
)

func TestInputIsRecordedAtMostOnceAMinute(t *testing.T) {
	t.Parallel()
	start := time.Now()
	now := start
	table := New(func() time.Time { return now })
	first, second := table.Open(workspace, ada), table.Open(workspace, ada)
	require.Empty(t, table.Take(), "a connection without input is no activity")
	first.Input(3)
	second.Sent(10)
	require.Equal(t, []Record{{workspace, ada, start, 2, 3, 10}}, table.Take())
	now = now.Add(59 * time.Second)
	second.Input(4)
	second.Close()
	second.Close() // once
	require.Empty(t, table.Take())
	now = now.Add(time.Second)
	require.Equal(t, []Record{{workspace, ada, start.Add(59 * time.Second), 1, 4, 0}}, table.Take())
	first.Sent(100)
	now = now.Add(time.Hour)
	require.Empty(t, table.Take(), "output alone is no activity")
	first.Close()
	require.Empty(t, table.Take())
	require.Empty(t, table.counts, "nothing is kept of who has left")
}

func TestPeopleAndWorkspacesAreCountedApart(t *testing.T) {
	t.Parallel()
	table := New(time.Now)
	table.Open(workspace, ada).Input(1)
	table.Open(workspace, eve).Input(1)
	table.Open("other", ada).Input(1)
	require.Len(t, table.Take(), 3)
}

func TestRecordThatWasNotPublishedIsDueAgain(t *testing.T) {
	t.Parallel()
	start := time.Now()
	now := start
	table := New(func() time.Time { return now })
	session := table.Open(workspace, ada)
	session.Input(3)
	session.Close()
	records := table.Take()
	now = now.Add(time.Second)
	require.Len(t, records, 1)
	table.Return(records[0])
	require.Equal(t, []Record{{workspace, ada, start, 0, 3, 0}}, table.Take())
}
