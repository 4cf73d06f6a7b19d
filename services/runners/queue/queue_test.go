package queue_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/queue"
)

var start = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

// runner takes jobs of its projects whose tags it has.
type runner struct {
	id        int64
	tags      []string
	protected bool
	projects  []int64 // none: all
}

func (r runner) RunnerID() int64 { return r.id }

func (r runner) TakesClass(tags []string, protected bool) bool {
	return (!protected || r.protected) &&
		!slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(r.tags, tag) })
}

func (r runner) TakesProject(project int64) bool {
	return len(r.projects) == 0 || slices.Contains(r.projects, project)
}

func waiting(id, project int64, age int, tags ...string) job.Job {
	return job.Job{
		ID: id, ProjectID: project, Tags: tags, State: job.Pending, Revision: 2,
		PendingSince: start.Add(-time.Duration(age) * time.Second),
	}
}

func fill(jobs ...job.Job) *queue.Queue {
	q := queue.New()
	for _, j := range jobs {
		q.Put(j)
	}
	return q
}

// takeAll returns the ids of all jobs that the runner takes, in order.
func takeAll(q *queue.Queue, r runner) []int64 {
	var ids []int64
	for {
		j, found := q.Take(r)
		if !found {
			return ids
		}
		ids = append(ids, j.ID)
	}
}

func TestOldestJobOfTheProjectWithTheFewestRunningJobsIsNext(t *testing.T) {
	t.Parallel()
	q := fill(waiting(1, 4, 50), waiting(2, 4, 40), waiting(3, 4, 30), waiting(4, 5, 20), waiting(5, 5, 10))
	require.Equal(t, []int64{1, 4, 2, 5, 3}, takeAll(q, runner{}))
	busy := waiting(9, 4, 60)
	busy.State, busy.Revision = job.Running, 3
	q = fill(busy, waiting(1, 4, 50), waiting(4, 5, 20))
	require.Equal(t, []int64{4, 1}, takeAll(q, runner{}))
	require.Equal(t, []int64{1, 2}, takeAll(fill(waiting(2, 4, 10), waiting(1, 4, 10)), runner{}))
}

func TestRunnerTakesMatchingJobsOnly(t *testing.T) {
	t.Parallel()
	guarded := waiting(5, 4, 9)
	guarded.Protected = true
	jobs := []job.Job{
		waiting(1, 4, 50, "linux"), waiting(2, 4, 40, "gpu", "linux"), waiting(3, 5, 30),
		waiting(4, 6, 20, "windows"), guarded,
	}
	for _, test := range []struct {
		runner runner
		want   []int64
	}{
		{runner{tags: []string{"linux"}, projects: []int64{4, 5}}, []int64{1, 3}},
		{runner{tags: []string{"gpu", "linux"}, projects: []int64{4}}, []int64{1, 2}},
		{runner{tags: []string{"gpu"}, projects: []int64{4}}, nil},
		{runner{protected: true, projects: []int64{4}}, []int64{5}},
		{runner{tags: []string{"windows"}}, []int64{3, 4}},
	} {
		require.Equal(t, test.want, takeAll(fill(jobs...), test.runner))
	}
}

func TestJobsOfSimilarTagsAreKeptApart(t *testing.T) {
	t.Parallel()
	q := fill(waiting(1, 4, 50, "a", "b"), waiting(2, 4, 40, "a 1:b"))
	require.Equal(t, []int64{2}, takeAll(q, runner{tags: []string{"a 1:b"}}))
	require.Equal(t, []int64{1}, takeAll(q, runner{tags: []string{"a", "b"}}))
}

func TestEarlierRevisionChangesNothing(t *testing.T) {
	t.Parallel()
	q := fill(waiting(1, 4, 50))
	running := waiting(1, 4, 50)
	running.State, running.Revision = job.Running, 3
	require.False(t, q.Put(running))
	require.False(t, q.Put(waiting(1, 4, 50)), "a notification that is late")
	require.Zero(t, q.Waiting())
	require.Equal(t, 1, q.Running(4))
	ended := running
	ended.State, ended.Revision = job.Success, 4
	q.Put(ended)
	require.Zero(t, q.Running(4))
	require.Empty(t, q.IDs())
}

func TestClaimThatFailsIsReplacedByWhatIsStored(t *testing.T) {
	t.Parallel()
	q := fill(waiting(1, 4, 50))
	_, found := q.Take(runner{})
	require.True(t, found)
	require.Equal(t, 1, q.Running(4))
	stored := waiting(1, 4, 50)
	require.True(t, q.Restore(1, &stored))
	require.Zero(t, q.Running(4))
	require.Equal(t, []int64{1}, takeAll(q, runner{}))
	require.False(t, q.Restore(1, nil))
	require.Empty(t, q.IDs())
}

// TestQueueEqualsASimpleOne compares it with a search through a list, for random jobs and runners.
func TestQueueEqualsASimpleOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		q, list := queue.New(), map[int64]job.Job{}
		running := map[int64]int{}
		tags := []string{"a", "b", "c"}
		pick := func() []string {
			chosen := slices.Clone(tags[:random.IntN(3)])
			slices.Sort(chosen)
			return chosen
		}
		for step := range int64(100) {
			switch random.IntN(3) {
			case 0, 1:
				j := waiting(step+1, int64(random.IntN(4)), random.IntN(5), pick()...)
				j.Protected = random.IntN(4) == 0
				q.Put(j)
				list[j.ID] = j
			default:
				r := runner{tags: pick(), protected: random.IntN(2) == 0, projects: []int64{int64(random.IntN(4)), 1}}
				got, found := q.Take(r)
				want, expected := simple(list, running, r)
				require.Equal(t, expected, found, "seed %d", seed)
				require.Equal(t, want.ID, got.ID, "seed %d", seed)
				delete(list, want.ID)
				if found {
					running[want.ProjectID]++
				}
			}
			require.Equal(t, len(list), q.Waiting())
		}
	}
}

func simple(list map[int64]job.Job, running map[int64]int, r runner) (best job.Job, found bool) {
	for _, j := range list {
		if !queue.Offers(j, r) {
			continue
		}
		x, y := running[j.ProjectID], running[best.ProjectID]
		older := j.PendingSince.Before(best.PendingSince) || j.PendingSince.Equal(best.PendingSince) && j.ID < best.ID
		if !found || x < y || x == y && older {
			best, found = j, true
		}
	}
	return best, found
}

func BenchmarkTake(b *testing.B) {
	for _, size := range []int{1000, 100_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			q := queue.New()
			for i := range int64(size) {
				q.Put(waiting(i+1, i%20, int(i), "linux"))
			}
			r := runner{tags: []string{"linux"}}
			for b.Loop() {
				j, _ := q.Take(r)
				q.Restore(j.ID, &j)
			}
		})
	}
}

func TestRunnerGetsOnlyJobsForWhichAdmissionAcceptsIt(t *testing.T) {
	t.Parallel()
	q := queue.New()
	free, restricted, refused := waiting(1, 1, 10), waiting(2, 1, 30), waiting(3, 1, 20)
	restricted.Admission = &job.Admission{AcceptedRunners: []int64{31}}
	refused.Admission = &job.Admission{RejectedRunners: []int64{31}}
	for _, j := range []job.Job{free, restricted, refused} {
		require.True(t, q.Put(j))
	}
	require.False(t, queue.Offers(refused, runner{id: 31}))
	require.True(t, queue.Offers(restricted, runner{id: 31}))
	var got []int64
	for _, r := range []runner{{id: 32}, {id: 32}, {id: 32}, {id: 31}, {id: 31}} {
		j, found := q.Take(r)
		if !found {
			j.ID = 0
		}
		got = append(got, j.ID)
	}
	require.Equal(t, []int64{3, 1, 0, 2, 0}, got)
}
