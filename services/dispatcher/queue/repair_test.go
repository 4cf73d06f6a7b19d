package queue_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/dispatcher/queue"
)

func settled(t *testing.T, q *queue.Queue[string], keys ...string) {
	t.Helper()
	for _, key := range keys {
		require.True(t, q.Put(key, 1, "fresh"))
		q.Settle(take(t, q), "kept")
	}
}

func TestRepairRepeatsSettledTasksOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[string](queue.Limits{Repairs: 2, RepairPause: pause})
		settled(t, q, "a", "b", "c")
		q.Put("over", 1, "")
		q.Done(take(t, q))
		none(t, q)
		start := time.Now()
		q.Repair()
		q.Repair()
		require.Equal(t, queue.Depth{Repair: 3}, q.Depth())
		a, b := take(t, q), take(t, q)
		require.Equal(t, []string{"a", "b"}, []string{a.Key, b.Key})
		require.True(t, a.Repair)
		require.Equal(t, "kept", a.Item)
		require.Equal(t, 1, a.Attempt)
		require.Equal(t, pause, time.Since(start), "they are paced")
		none(t, q) // two at once
		q.Settle(a, "kept")
		c := take(t, q)
		require.Equal(t, "c", c.Key)
		q.Settle(b, "kept")
		q.Settle(c, "kept")
		none(t, q)
		require.False(t, q.Put("a", 1, "told again"), "a repair changes nothing about versions")
	})
}

func TestRepairRunsAfterOtherWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[string](queue.Limits{Retries: 1, Repairs: 1})
		keys := make([]string, 0, 100)
		for i := range 100 {
			keys = append(keys, fmt.Sprintf("settled%02d", i))
		}
		settled(t, q, keys...)
		q.Put("sick", 1, "")
		q.Retry(take(t, q), 0)
		q.Repair()
		q.Put("new", 1, "")
		q.Put("settled07", 2, "changed")
		for _, want := range []string{"new", "settled07", "sick"} {
			task := take(t, q)
			require.Equal(t, want, task.Key)
			require.False(t, task.Repair)
			q.Settle(task, "")
		}
		first := take(t, q)
		require.True(t, first.Repair)
		q.Put("newer", 1, "")
		require.Equal(t, "newer", take(t, q).Key, "a repair under way leaves room")
		q.Settle(first, "kept")
		for range 98 {
			task := take(t, q)
			require.NotEqual(t, "settled07", task.Key, "its new version was brought about after the repair was asked for")
			q.Settle(task, "kept")
		}
		none(t, q)
	})
}

func TestRunningTaskIsRepairedAfterwards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[string](queue.Limits{})
		q.Put("a", 1, "")
		q.Put("b", 1, "")
		a, b := take(t, q), take(t, q)
		q.Repair()
		q.Settle(a, "kept")
		q.Retry(b, time.Minute)
		again := take(t, q)
		require.Equal(t, "a", again.Key)
		require.True(t, again.Repair)
		// A repair that fails is tried again like anything else.
		q.Retry(again, time.Second)
		again = take(t, q)
		require.True(t, again.Repair)
		require.Equal(t, 2, again.Attempt)
		q.Settle(again, "kept")
		b = take(t, q)
		require.False(t, b.Repair)
		q.Settle(b, "kept")
		none(t, q) // b was gone through after the repair was asked for
	})
}

func TestVoidVersionDropsLowerWorkAndBlocksNothing(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(q *queue.Queue[string]) func(){
		"waits": func(q *queue.Queue[string]) func() { q.Put("a", 5, "five"); return func() {} },
		"is tried again": func(q *queue.Queue[string]) func() {
			q.Put("a", 5, "five")
			q.Retry(take(t, q), time.Second)
			return func() {}
		},
		"is worked on": func(q *queue.Queue[string]) func() {
			q.Put("a", 5, "five")
			task := take(t, q)
			return func() { q.Retry(task, time.Second) }
		},
		"is settled": func(q *queue.Queue[string]) func() {
			q.Put("a", 5, "five")
			q.Settle(take(t, q), "five")
			return q.Repair
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := queue.New[string](queue.Limits{})
				end := prepare(q)
				q.Void("a", 4)
				q.Void("a", 1_000_000_000_000)
				q.Void("unknown", 1)
				end()
				time.Sleep(time.Minute)
				require.Equal(t, queue.Depth{}, q.Depth())
				none(t, q)
				require.False(t, q.Put("a", 5, "told again"))
				require.True(t, q.Put("a", 6, "six"))
				task := take(t, q)
				require.Equal(t, "six", task.Item)
				q.Done(task)
				none(t, q)
			})
		})
	}
}
