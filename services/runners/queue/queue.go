package queue

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"lockstep.internal/services/runners/job"
)

// Matcher tells which jobs a runner takes.
type Matcher interface {
	// RunnerID is the runner, which admission may accept or reject for a job.
	RunnerID() int64
	// TakesClass is asked once for the jobs with these tags and protection.
	TakesClass(tags []string, protected bool) bool
	// TakesProject is asked for a project of a class that the runner takes.
	TakesProject(project int64) bool
}

// Queue is the jobs that wait and the number of those that run.
type Queue struct {
	jobs    map[int64]entry
	classes map[string]*class
	running map[int64]int // by project
}

// entry is a job that waits or runs.
type entry struct {
	job     job.Job
	waiting bool
}

// class is the jobs with the same tags, protection and decision of admission about runners, by project.
type class struct {
	tags      []string
	protected bool
	admission *job.Admission
	projects  map[int64]*line
}

// New returns an empty queue.
func New() *Queue {
	return &Queue{jobs: map[int64]entry{}, classes: map[string]*class{}, running: map[int64]int{}}
}

// Put takes a job as it is stored. It reports whether the job began to wait.
func (q *Queue) Put(j job.Job) bool {
	known, found := q.jobs[j.ID]
	if found && known.job.Revision >= j.Revision {
		return false
	}
	if found {
		q.remove(known)
	}
	switch {
	case j.State == job.Pending:
		q.add(j)
		return true
	case j.State.Active():
		q.jobs[j.ID] = entry{job: j}
		q.running[j.ProjectID]++
	}
	return false
}

// Take removes and returns the job that the runner gets next, and counts it as running. The caller stores the
// transition, and puts the job that is stored then; or the job as it is now stored, if that fails: see [Queue.Restore].
func (q *Queue) Take(m Matcher) (job.Job, bool) {
	var best *line
	for _, c := range q.classes {
		if !c.admission.Allows(m.RunnerID()) || !m.TakesClass(c.tags, c.protected) {
			continue
		}
		for project, l := range c.projects {
			if (best == nil || q.before(l, best)) && m.TakesProject(project) {
				best = l
			}
		}
	}
	if best == nil {
		return job.Job{}, false
	}
	j := best.first()
	q.remove(q.jobs[j.ID])
	q.jobs[j.ID] = entry{job: j}
	q.running[j.ProjectID]++
	return j, true
}

// Offers reports whether a job that waits is for the runner.
func Offers(j job.Job, m Matcher) bool {
	return j.Admission.Allows(m.RunnerID()) && m.TakesClass(j.Tags, j.Protected) && m.TakesProject(j.ProjectID)
}

// Restore replaces what is known of a job by what is stored, whatever its revision. A nil job does not exist.
func (q *Queue) Restore(id int64, stored *job.Job) bool {
	if known, found := q.jobs[id]; found {
		q.remove(known)
	}
	return stored != nil && q.Put(*stored)
}

// Job returns a job that waits or runs.
func (q *Queue) Job(id int64) (j job.Job, waiting, found bool) {
	e, found := q.jobs[id]
	return e.job, e.waiting, found
}

// Waiting returns the number of jobs that wait.
func (q *Queue) Waiting() int {
	n := 0
	for _, c := range q.classes {
		for _, l := range c.projects {
			n += l.Len()
		}
	}
	return n
}

// Running returns the number of jobs of a project that run.
func (q *Queue) Running(project int64) int { return q.running[project] }

// IDs returns the ids of all jobs that wait or run.
func (q *Queue) IDs() []int64 {
	ids := make([]int64, 0, len(q.jobs))
	for id := range q.jobs {
		ids = append(ids, id)
	}
	return ids
}

// before reports whether the first job of a line is picked before that of another.
func (q *Queue) before(a, b *line) bool {
	x, y := a.first(), b.first()
	return cmp.Or(
		cmp.Compare(q.running[x.ProjectID], q.running[y.ProjectID]),
		x.PendingSince.Compare(y.PendingSince),
		cmp.Compare(x.ID, y.ID),
	) < 0
}

func (q *Queue) add(j job.Job) {
	key := classKey(j)
	c := q.classes[key]
	if c == nil {
		c = &class{tags: j.Tags, protected: j.Protected, admission: j.Admission, projects: map[int64]*line{}}
		q.classes[key] = c
	}
	l := c.projects[j.ProjectID]
	if l == nil {
		l = &line{}
		c.projects[j.ProjectID] = l
	}
	l.push(j)
	q.jobs[j.ID] = entry{job: j, waiting: true}
}

func (q *Queue) remove(e entry) {
	j := e.job
	delete(q.jobs, j.ID)
	if !e.waiting {
		if q.running[j.ProjectID]--; q.running[j.ProjectID] == 0 {
			delete(q.running, j.ProjectID)
		}
		return
	}
	key := classKey(j)
	c := q.classes[key]
	l := c.projects[j.ProjectID]
	l.remove(j.ID)
	if l.Len() == 0 {
		delete(c.projects, j.ProjectID)
	}
	if len(c.projects) == 0 {
		delete(q.classes, key)
	}
}

// classKey is the same for jobs of one class. A length before each tag keeps tags apart.
func classKey(j job.Job) string {
	var key strings.Builder
	key.WriteString(strconv.FormatBool(j.Protected))
	for _, tag := range j.Tags {
		key.WriteByte(' ')
		key.WriteString(strconv.Itoa(len(tag)))
		key.WriteByte(':')
		key.WriteString(tag)
	}
	if a := j.Admission; a != nil {
		fmt.Fprint(&key, " ", a.AcceptedRunners, a.RejectedRunners)
	}
	return key.String()
}
