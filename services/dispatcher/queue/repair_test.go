package queue_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/dispatcher/queue"
)

func completed(t *testing.T, q *queue.Queue[string], keys ...string) {
	t.Helper()
	for _, key := range keys {
		require.True(t, q.Put(key, 1, "new"))
		q.Complete(take(t, q), "kept")
	}
}

func TestRepairRepeatsCompletedTasksOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[string](queue.Limits{Repairs: 2, RepairPause: pause})
		completed(t, q, "a", "b", "c")
		q.Put("over", 1, "")
		q.Discard(take(t, q))
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
		require.Equal(t, pause, time.Since(start), "the pause between two repairs")
		none(t, q) // at most two concurrent repairs
		q.Complete(a, "kept")
		c := take(t, q)
		require.Equal(t, "c", c.Key)
		q.Complete(b, "kept")
		q.Complete(c, "kept")
		none(t, q)
		require.False(t, q.Put("a", 1, "redelivered"), "a repair changes nothing about versions")
	})
}

func TestRepairRunsAfterOtherWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[string](queue.Limits{Retries: 1, Repairs: 1})
		keys := make([]string, 0, 100)
		for i := range 100 {
			keys = append(keys, fmt.Sprintf("completed%02d", i))
		}
		completed(t, q, keys...)
		q.Put("failing", 1, "")
		q.Retry(take(t, q), 0)
		q.Repair()
		q.Put("new", 1, "")
		q.Put("completed07", 2, "changed")
		for _, want := range []string{"new", "completed07", "failing"} {
			task := take(t, q)
			require.Equal(t, want, task.Key)
			require.False(t, task.Repair)
			q.Complete(task, "")
		}
		first := take(t, q)
		require.True(t, first.Repair)
		q.Put("newer", 1, "")
		require.Equal(t, "newer", take(t, q).Key, "a running repair does not block new work")
		q.Complete(first, "kept")
		for range 98 {
			task := take(t, q)
			require.NotEqual(t, "completed07", task.Key, "its new version was put after Repair was called")
			q.Complete(task, "kept")
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
		q.Complete(a, "kept")
		q.Retry(b, time.Minute)
		again := take(t, q)
		require.Equal(t, "a", again.Key)
		require.True(t, again.Repair)
		// A failed repair is retried like any other task.
		q.Retry(again, time.Second)
		again = take(t, q)
		require.True(t, again.Repair)
		require.Equal(t, 2, again.Attempt)
		q.Complete(again, "kept")
		b = take(t, q)
		require.False(t, b.Repair)
		q.Complete(b, "kept")
		none(t, q) // b was completed after Repair was called
	})
}

func TestDropBelowDropsLowerWorkAndBlocksNothing(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(q *queue.Queue[string]) func(){
		"queued": func(q *queue.Queue[string]) func() { q.Put("a", 5, "five"); return func() {} },
		"retrying": func(q *queue.Queue[string]) func() {
			q.Put("a", 5, "five")
			q.Retry(take(t, q), time.Second)
			return func() {}
		},
		"running": func(q *queue.Queue[string]) func() {
			q.Put("a", 5, "five")
			task := take(t, q)
			return func() { q.Retry(task, time.Second) }
		},
		"completed": func(q *queue.Queue[string]) func() {
			q.Put("a", 5, "five")
			q.Complete(take(t, q), "five")
			return q.Repair
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := queue.New[string](queue.Limits{})
				end := prepare(q)
				q.DropBelow("a", 4)
				q.DropBelow("a", 1_000_000_000_000)
				q.DropBelow("unknown", 1)
				end()
				time.Sleep(time.Minute)
				require.Equal(t, queue.Depth{}, q.Depth())
				none(t, q)
				require.False(t, q.Put("a", 5, "redelivered"))
				require.True(t, q.Put("a", 6, "six"))
				task := take(t, q)
				require.Equal(t, "six", task.Item)
				q.Discard(task)
				none(t, q)
			})
		})
	}
}
