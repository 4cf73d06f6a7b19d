package queue_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/retry"
	"lockstep.internal/services/dispatcher/queue"
	"lockstep.internal/tools/testkit/leaktest"
)

// pause between two repairs.
const pause = 10 * time.Millisecond

func TestMain(m *testing.M) { leaktest.Main(m) }

func take(t *testing.T, q *queue.Queue[string]) queue.Task[string] {
	t.Helper()
	task, err := q.Take(t.Context())
	require.NoError(t, err)
	return task
}

// none checks that nothing is due.
func none(t *testing.T, q *queue.Queue[string]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	taken := make(chan queue.Task[string], 1)
	go func() {
		if task, err := q.Take(ctx); err == nil {
			taken <- task
		}
		close(taken)
	}()
	synctest.Wait()
	cancel()
	task, ok := <-taken
	require.False(t, ok, "%s at version %d is due", task.Key, task.Version)
}

func TestNewestVersionWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[string](queue.Limits{Retries: 1, Repairs: 1, RepairPause: pause})
		require.True(t, q.Put("a", 1, "one"))
		require.True(t, q.Put("a", 3, "three"))
		require.False(t, q.Put("a", 2, "two"))
		require.False(t, q.Put("a", 3, "again"))
		task := take(t, q)
		require.Equal(t, int64(3), task.Version)
		require.Equal(t, "three", task.Item)
		none(t, q)
		q.Discard(task)
		none(t, q)
		require.False(t, q.Put("a", 3, "redelivered"), "it was discarded")
		require.True(t, q.Put("a", 4, "four"))
		q.Discard(take(t, q))
		require.Equal(t, queue.Depth{}, q.Depth())
	})
}

func TestKeyHasOneRunningTask(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*queue.Queue[string], queue.Task[string]){
		"discarded": func(q *queue.Queue[string], task queue.Task[string]) { q.Discard(task) },
		"failed":    func(q *queue.Queue[string], task queue.Task[string]) { q.Retry(task, time.Hour) },
		"requeued":  func(q *queue.Queue[string], task queue.Task[string]) { q.RequeueAfter(task, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := queue.New[string](queue.Limits{Retries: 1, Repairs: 1, RepairPause: pause})
				q.Put("a", 1, "one")
				task := take(t, q)
				q.Put("a", 2, "two")
				none(t, q)
				end(q, task)
				task = take(t, q)
				require.Equal(t, int64(2), task.Version, "a version put meanwhile is due without delay")
				require.Equal(t, 1, task.Attempt)
			})
		})
	}
}

func TestRetriesAreDueAfterTheirDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.New[string](queue.Limits{Retries: 2, Repairs: 1, RepairPause: pause})
		q.Put("a", 1, "")
		q.Put("b", 1, "")
		a, b := take(t, q), take(t, q)
		start := time.Now()
		q.Retry(a, 3*time.Second)
		q.Retry(b, time.Second)
		b = take(t, q)
		require.Equal(t, "b", b.Key)
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, 2, b.Attempt)
		a = take(t, q)
		require.Equal(t, "a", a.Key)
		require.Equal(t, 3*time.Second, time.Since(start))

		// A new version is due at once and its attempts start at 1.
		q.Retry(a, time.Hour)
		q.Put("a", 2, "")
		a = take(t, q)
		require.Equal(t, 1, a.Attempt)
		require.Equal(t, 3*time.Second, time.Since(start))

		// RequeueAfter does not count as an attempt, and Wake ends it early.
		q.RequeueAfter(a, time.Hour)
		q.Wake("a")
		a = take(t, q)
		require.Equal(t, 1, a.Attempt)
		require.Equal(t, 1, a.Requeues)
		q.Wake("a")
		q.RequeueAfter(a, time.Hour)
		a = take(t, q)
		require.Equal(t, 2, a.Requeues, "woken while it was worked on")
		require.Equal(t, 3*time.Second, time.Since(start))
		q.Wake("unknown")
		q.Discard(a)
		q.Wake("a")
		none(t, q)
	})
}

func TestThousandFailingKeysDoNotDelayAHealthyOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const workers, retries = 8, 4
		q := queue.New[string](queue.Limits{Retries: retries, Repairs: 1, RepairPause: pause})
		backoff := retry.Policy{Min: time.Second, Max: 5 * time.Minute}
		for i := range 1000 {
			q.Put(fmt.Sprint(i), 1, "sick")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		healthy := make(chan time.Duration, 100)
		for range workers {
			group.Go(func() {
				for {
					task, err := q.Take(ctx)
					if err != nil {
						return
					}
					if task.Item == "healthy" {
						waited := time.Since(task.Since)
						q.Discard(task) // before the signal, so that Depth below does not count it as running
						healthy <- waited
						continue
					}
					if task.Attempt > 1 {
						time.Sleep(10 * time.Second) // in the bubble: it hangs until its time-out
					}
					q.Retry(task, backoff.Delay(task.Attempt))
				}
			})
		}
		for i := range 100 {
			time.Sleep(7 * time.Second)
			q.Put(fmt.Sprint("healthy", i), 1, "healthy")
			require.Zero(t, <-healthy)
			require.LessOrEqual(t, q.Depth().Running, retries)
		}
		cancel()
		group.Wait()
	})
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 1, 0, 2, 64, 65, 128, 129, 192})
	f.Add([]byte{4, 64, 140, 192, 64, 132, 192, 8, 64, 64})
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			q := queue.New[int64](queue.Limits{Retries: 2, Repairs: 1, RepairPause: pause})
			put, done, completed := map[string]int64{}, map[string]int64{}, map[string]int64{}
			running := map[string]queue.Task[int64]{}
			step := func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(time.Nanosecond, cancel)
				task, err := q.Take(ctx)
				if err != nil {
					return
				}
				_, twice := running[task.Key]
				require.False(t, twice, "taken twice at once")
				require.Equal(t, task.Version, task.Item)
				require.Equal(t, put[task.Key], task.Version, "not the newest")
				if task.Repair {
					require.Equal(t, task.Version, completed[task.Key], "only what was completed is repaired")
				} else {
					require.Greater(t, task.Version, done[task.Key])
				}
				running[task.Key] = task
			}
			end := func(key string, how byte) {
				task, ok := running[key]
				if !ok {
					return
				}
				delete(running, key)
				switch how % 4 {
				case 0:
					q.Discard(task)
					done[key] = task.Version
				case 3:
					q.Complete(task, task.Item)
					done[key], completed[key] = task.Version, task.Version
				case 1:
					q.Retry(task, time.Duration(how)*time.Millisecond)
				default:
					q.RequeueAfter(task, time.Duration(how)*time.Millisecond)
				}
			}
			for _, b := range script {
				key := string(rune('a' + b%4))
				switch b >> 6 {
				case 0:
					version := 1 + int64(b>>2&15)
					require.Equal(t, version > put[key], q.Put(key, version, version))
					put[key] = max(put[key], version)
				case 1:
					step()
				case 2:
					end(key, b>>2)
				default:
					switch b >> 2 & 3 {
					case 0:
						q.Repair()
					case 1:
						q.DropBelow(key, put[key]) // not a higher version: no effect
					default:
						q.Wake(key)
					}
					time.Sleep(time.Millisecond)
				}
			}
			// Everything that was put is done in the end.
			for range 64 {
				for key := range running {
					end(key, 0)
				}
				time.Sleep(time.Second)
				step()
			}
			for key := range running {
				end(key, 0)
			}
			for key, version := range put {
				require.Equal(t, version, done[key])
			}
		})
	})
}
