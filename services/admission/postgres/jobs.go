package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/publish"
)

// ErrConflict reports a job that has changed since it was loaded.
var ErrConflict = errors.New("the job has changed meanwhile")

// Open is the outcome of a job whose admission goes on.
const Open = "open"

// Jobs stores the admission of jobs.
type Jobs struct {
	Pool    *pgxpool.Pool
	Encoder publish.Encoder
	Metrics *Metrics
}

const jobColumns = `j.job_id, j.preparation, j.project_id, j.subject, j.state, j.version, j.begun_at, j.deadline,
	j.answer_by, j.ended_at`

func scanJob(row pgx.CollectableRow) (decide.Job, error) {
	var j decide.Job
	var subject, state []byte
	var answerBy, endedAt *time.Time
	err := row.Scan(&j.JobID, &j.Preparation, &j.ProjectID, &subject, &state, &j.Version, &j.BegunAt, &j.Deadline,
		&answerBy, &endedAt)
	if err != nil {
		return j, err //nolint:wrapcheck // the caller wraps it
	}
	if err := json.Unmarshal(subject, &j.Subject); err != nil {
		return j, fmt.Errorf("decode job %d: %w", j.JobID, err)
	}
	if err := json.Unmarshal(state, &j.State); err != nil {
		return j, fmt.Errorf("decode the state of job %d: %w", j.JobID, err)
	}
	j.Tags, j.Variables = j.State.Job.Tags, j.State.Job.Variables
	j.BegunAt, j.Deadline, j.AnswerBy, j.EndedAt = j.BegunAt.UTC(), j.Deadline.UTC(), timeOf(answerBy), timeOf(endedAt)
	return j, nil
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func nullable(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func readJobs(ctx context.Context, db Querier, rest string, args ...any) ([]decide.Job, error) {
	rows, err := db.Query(ctx, `SELECT `+jobColumns+` FROM jobs j `+rest, args...)
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	return found, nil
}

// Get returns the admission of a job; false if there is none.
func (s Jobs) Get(ctx context.Context, jobID int64) (decide.Job, bool, error) {
	found, err := readJobs(ctx, s.Pool, `WHERE job_id = $1`, jobID)
	if err != nil || len(found) == 0 {
		return decide.Job{}, false, err
	}
	return found[0], true, nil
}

// Page selects jobs of a project, the newest first.
type Page struct {
	ProjectID int64
	// Outcome is open, or one of the chain; empty for all. Causes are those of rejected jobs; nil for all.
	Outcome string
	Causes  []string
	// Before is the id of the last job of the page before; 0 for the first page.
	Before int64
	Size   int
}

// List returns a page of jobs.
func (s Jobs) List(ctx context.Context, p Page) ([]decide.Job, error) {
	return readJobs(ctx, s.Pool, `WHERE project_id = $1 AND ($2 = '' OR outcome = $2) AND ($3::text[] IS NULL OR
		cause = ANY ($3)) AND ($4 = 0 OR job_id < $4) ORDER BY job_id DESC LIMIT $5`,
		p.ProjectID, p.Outcome, p.Causes, p.Before, p.Size)
}

// Load returns a job with the controllers for which it waits, also deleted ones; false if there is none.
func (s Jobs) Load(ctx context.Context, jobID int64) (decide.Job, []controller.Controller, bool, error) {
	j, found, err := s.Get(ctx, jobID)
	if err != nil || !found || !j.Open() {
		return j, nil, found, err
	}
	ids := make([]int64, len(j.State.Waiting))
	for i, c := range j.State.Waiting {
		ids[i] = c.ID
	}
	controllers, err := readControllers(ctx, s.Pool, `WHERE id = ANY ($1)`, ids)
	return j, controllers, true, err
}

// LoadAll returns open jobs by their ids, and all controllers for which they wait, also deleted ones.
func (s Jobs) LoadAll(ctx context.Context, ids []int64) (map[int64]decide.Job, []controller.Controller, error) {
	found, err := readJobs(ctx, s.Pool, `WHERE job_id = ANY ($1) AND outcome = 'open'`, ids)
	if err != nil || len(found) == 0 {
		return nil, nil, err
	}
	jobs, waitingFor := make(map[int64]decide.Job, len(found)), map[int64]bool{}
	for _, j := range found {
		jobs[j.JobID] = j
		for _, c := range j.State.Waiting {
			waitingFor[c.ID] = true
		}
	}
	controllers, err := readControllers(ctx, s.Pool, `WHERE id = ANY ($1)`, slices.Collect(maps.Keys(waitingFor)))
	return jobs, controllers, err
}

// Begun is a job whose admission begins.
type Begun struct {
	Job decide.Job
	Ask *decide.Ask
}

// Lock returns the stored jobs with these ids, locked until the end of the transaction.
func (Jobs) Lock(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]decide.Job, error) {
	found, err := readJobs(ctx, tx, `WHERE job_id = ANY ($1) ORDER BY job_id FOR UPDATE`, ids)
	if err != nil {
		return nil, err
	}
	out := make(map[int64]decide.Job, len(found))
	for _, j := range found {
		out[j.JobID] = j
	}
	return out, nil
}

// Begin stores jobs whose admission begins. It publishes those that ask nobody; the first change of another job is
// published when its conditions are evaluated. It replaces earlier preparations of them.
func (s Jobs) Begin(ctx context.Context, tx pgx.Tx, begun []Begun) error {
	var batch pgx.Batch
	notify := false
	for _, b := range begun {
		subject, state, err := encode(b.Job)
		if err != nil {
			return err
		}
		batch.Queue(`DELETE FROM jobs WHERE job_id = $1`, b.Job.JobID)
		batch.Queue(`
			INSERT INTO jobs (job_id, preparation, project_id, subject, state, outcome, cause, begun_at, deadline, answer_by,
				ended_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
			b.Job.JobID, b.Job.Preparation, b.Job.ProjectID, subject, state, outcomeOf(b.Job), string(b.Job.State.Cause),
			b.Job.BegunAt, b.Job.Deadline, nullable(b.Job.AnswerBy), nullable(b.Job.EndedAt))
		if b.Ask != nil {
			notify = true
			batch.Queue(`INSERT INTO asks (job_id, controller_id, attempt, due_at) VALUES ($1, $2, $3, $4)`,
				b.Job.JobID, EvaluationLane, b.Ask.Attempt, b.Ask.DueAt)
		}
	}
	if notify {
		batch.Queue(`SELECT pg_notify($1, '')`, AskChannel)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store %d jobs: %w", len(begun), err)
	}
	var ended []Change
	for _, b := range begun {
		if b.Ask == nil {
			ended = append(ended, Change{After: b.Job, First: true})
		}
	}
	return s.publish(ctx, tx, ended)
}

// Change is a job before and after an input, with its next question.
type Change struct {
	Before, After decide.Job
	Ask           *decide.Ask
	// First is set for the first change of a job, whose events have all its prerequisites. Before it, nothing was
	// published about the job: most would have been published twice within milliseconds.
	First bool
}

// publish stores the events of changes.
func (s Jobs) publish(ctx context.Context, tx pgx.Tx, changes []Change) error {
	if len(changes) == 0 {
		return nil
	}
	var all []*nats.Msg
	for i := range changes {
		var before *decide.Job
		if !changes[i].First {
			before = &changes[i].Before
		}
		messages, err := s.Encoder.Changes(ctx, before, changes[i].After)
		if err != nil {
			return err
		}
		all = append(all, messages...)
	}
	if err := outbox.Insert(ctx, tx, all...); err != nil {
		return fmt.Errorf("publish the admission of %d jobs: %w", len(changes), err)
	}
	for _, c := range changes {
		if !c.After.Open() {
			s.Metrics.decided.WithLabelValues(outcomeOf(c.After), string(c.After.State.Cause)).Inc()
		}
	}
	return nil
}

func encode(j decide.Job) (subject, state []byte, err error) {
	if subject, err = json.Marshal(j.Subject); err != nil {
		return nil, nil, fmt.Errorf("encode job %d: %w", j.JobID, err)
	}
	if state, err = json.Marshal(j.State); err != nil {
		return nil, nil, fmt.Errorf("encode the state of job %d: %w", j.JobID, err)
	}
	return subject, state, nil
}

func outcomeOf(j decide.Job) string {
	if j.Open() {
		return Open
	}
	return string(j.State.Outcome)
}

// Save stores a job that an input has changed, with its question and its events. with stores what belongs to it in the
// same transaction; nil for nothing. The error is [ErrConflict] if the job has changed since it was loaded.
func (s Jobs) Save(
	ctx context.Context, before, after decide.Job, ask *decide.Ask, with func(ctx context.Context, tx pgx.Tx) error,
) error {
	return postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := s.SaveIn(ctx, tx, before, after, ask); err != nil {
			return err
		}
		if with == nil {
			return nil
		}
		return with(ctx, tx)
	})
}

// SaveIn is Save in a transaction.
func (s Jobs) SaveIn(ctx context.Context, tx pgx.Tx, before, after decide.Job, ask *decide.Ask) error {
	saved, err := s.saveIn(ctx, tx, []Change{{Before: before, After: after, Ask: ask}})
	if err == nil && saved == 0 {
		err = fmt.Errorf("store job %d: %w", after.JobID, ErrConflict)
	}
	return err
}

// SaveAll stores changes in one transaction. It omits those of jobs that have changed since they were loaded.
func (s Jobs) SaveAll(ctx context.Context, changes []Change) error {
	return postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		_, err := s.saveIn(ctx, tx, changes)
		return err
	})
}

// saveIn returns how many of the jobs had not changed, and are stored. It locks them in the order of their ids.
func (s Jobs) saveIn(ctx context.Context, tx pgx.Tx, changes []Change) (int, error) {
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.After.JobID, b.After.JobID) })
	var updates pgx.Batch
	for _, c := range changes {
		_, state, err := encode(c.After)
		if err != nil {
			return 0, err
		}
		updates.Queue(`
			UPDATE jobs SET state = $3, outcome = $4, cause = $5, answer_by = $6, ended_at = $7, version = version + 1
			WHERE job_id = $1 AND version = $2 AND preparation = $8 AND outcome = 'open'`,
			c.After.JobID, c.Before.Version, state, outcomeOf(c.After), string(c.After.State.Cause),
			nullable(c.After.AnswerBy), nullable(c.After.EndedAt), c.Before.Preparation)
	}
	results := tx.SendBatch(ctx, &updates)
	saved := make([]Change, 0, len(changes))
	for _, c := range changes {
		tag, err := results.Exec()
		if err != nil {
			return 0, errors.Join(fmt.Errorf("store job %d: %w", c.After.JobID, err), results.Close())
		}
		if tag.RowsAffected() > 0 {
			saved = append(saved, c)
		}
	}
	if err := results.Close(); err != nil {
		return 0, fmt.Errorf("store %d jobs: %w", len(changes), err)
	}
	if len(saved) == 0 {
		return 0, nil
	}
	if err := storeQuestions(ctx, tx, saved); err != nil {
		return 0, err
	}
	return len(saved), s.publish(ctx, tx, saved)
}

func storeQuestions(ctx context.Context, tx pgx.Tx, changes []Change) error {
	var batch pgx.Batch
	notify := false
	for _, c := range changes {
		if c.Ask == nil {
			batch.Queue(`DELETE FROM asks WHERE job_id = $1`, c.After.JobID)
			continue
		}
		notify = true
		batch.Queue(`UPDATE asks SET controller_id = $2, attempt = $3, due_at = $4 WHERE job_id = $1`,
			c.After.JobID, c.Ask.ControllerID, c.Ask.Attempt, c.Ask.DueAt)
	}
	if notify {
		batch.Queue(`SELECT pg_notify($1, '')`, AskChannel)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store the questions of %d jobs: %w", len(changes), err)
	}
	return nil
}

// Waiting returns the number of open jobs.
func (s Jobs) Waiting(ctx context.Context) (int64, error) {
	var n int64
	if err := s.Pool.QueryRow(ctx, `SELECT count(*) FROM asks`).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the jobs that wait: %w", err)
	}
	return n, nil
}

// Overdue returns open jobs whose time to answer has passed, the longest first.
func (s Jobs) Overdue(ctx context.Context, at time.Time, limit int) ([]int64, error) {
	rows, err := s.Pool.Query(ctx,
		`SELECT job_id FROM jobs WHERE answer_by <= $1 ORDER BY answer_by LIMIT $2`, at, limit)
	if err != nil {
		return nil, fmt.Errorf("find overdue jobs: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("find overdue jobs: %w", err)
	}
	return ids, nil
}

// DeleteEnded deletes up to limit jobs that ended before a time, and deleted controllers for which no job waits. It
// returns the number of jobs.
func (s Jobs) DeleteEnded(ctx context.Context, before time.Time, limit int) (int64, error) {
	tag, err := s.Pool.Exec(ctx, `
		DELETE FROM jobs WHERE job_id IN (SELECT job_id FROM jobs WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)`,
		before, limit)
	if err != nil {
		return 0, fmt.Errorf("delete decisions: %w", err)
	}
	_, err = s.Pool.Exec(ctx, `
		DELETE FROM controllers c WHERE deleted_at < $1 AND NOT EXISTS (SELECT FROM asks WHERE controller_id = c.id)`, before)
	if err != nil {
		return 0, fmt.Errorf("delete controllers: %w", err)
	}
	return tag.RowsAffected(), nil
}

// eachPage is the number of jobs that EachSince reads at once.
const eachPage = 500

// EachSince calls take with the jobs that ended after a time, in pages.
func EachSince(ctx context.Context, tx pgx.Tx, since time.Time, take func([]decide.Job) error) error {
	for after := int64(0); ; {
		const next = `WHERE ended_at >= $1 AND job_id > $2 ORDER BY job_id LIMIT $3`
		page, err := readJobs(ctx, tx, next, since, after, eachPage)
		if err != nil || len(page) == 0 {
			return err
		}
		if err := take(page); err != nil {
			return err
		}
		after = page[len(page)-1].JobID
	}
}
