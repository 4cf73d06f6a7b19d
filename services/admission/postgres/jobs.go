package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/outbox"
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
	var jobs []decide.Job
	var controllers []controller.Controller
	const open = `FROM jobs j WHERE job_id = ANY ($1) AND outcome = 'open'`
	var batch pgx.Batch
	batch.Queue(`SELECT `+jobColumns+` `+open, ids).Query(func(found pgx.Rows) (err error) {
		jobs, err = pgx.CollectRows(found, scanJob)
		return err //nolint:wrapcheck // the caller wraps it
	})
	batch.Queue(`SELECT `+controllerColumns+` FROM controllers c WHERE id IN (
		SELECT (jsonb_array_elements(state -> 'waiting') ->> 'id')::bigint `+open+`)`, ids).
		Query(func(found pgx.Rows) (err error) {
			controllers, err = pgx.CollectRows(found, scanController)
			return err //nolint:wrapcheck // the caller wraps it
		})
	if err := s.Pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, nil, fmt.Errorf("read %d jobs: %w", len(ids), err)
	}
	byID := make(map[int64]decide.Job, len(jobs))
	for _, j := range jobs {
		byID[j.JobID] = j
	}
	return byID, controllers, nil
}

// Begun is a job whose admission begins.
type Begun struct {
	Job decide.Job
	Ask *decide.Ask
	// Evaluated is false for a job whose conditions and policies the dispatcher evaluates.
	Evaluated bool
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

// Begin stores jobs whose admission begins. The first events of a job are published when it has been evaluated: most
// would be published twice within milliseconds. It replaces earlier preparations of them.
func (s Jobs) Begin(ctx context.Context, tx pgx.Tx, begun []Begun) error {
	if len(begun) == 0 {
		return nil
	}
	var stored rows
	var asks questions
	projects, begunAt, deadlines := make([]int64, len(begun)), make([]time.Time, len(begun)), make([]time.Time, len(begun))
	subjects := make([][]byte, len(begun))
	for i, b := range begun {
		var err error
		if subjects[i], err = json.Marshal(b.Job.Subject); err != nil {
			return fmt.Errorf("encode job %d: %w", b.Job.JobID, err)
		}
		if err := stored.add(b.Job.Preparation, b.Job); err != nil {
			return err
		}
		projects[i], begunAt[i], deadlines[i] = b.Job.ProjectID, b.Job.BegunAt, b.Job.Deadline
		if b.Ask != nil {
			ask := *b.Ask
			if !b.Evaluated {
				ask.ControllerID = EvaluationLane
			}
			asks.add(b.Job.JobID, ask)
		}
	}
	var batch pgx.Batch
	batch.Queue(`DELETE FROM jobs WHERE job_id = ANY ($1)`, stored.ids)
	batch.Queue(`
		INSERT INTO jobs (job_id, preparation, state, outcome, cause, answer_by, ended_at, project_id, subject, begun_at,
			deadline)
		SELECT job_id, preparation, state, outcome, cause, answer_by, ended_at, project_id, subject, begun_at, deadline
		FROM unnest($1::bigint[], $2::bigint[], $3::jsonb[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[],
			$8::bigint[], $9::jsonb[], $10::timestamptz[], $11::timestamptz[]) AS begun (job_id, preparation, state, outcome,
			cause, answer_by, ended_at, project_id, subject, begun_at, deadline)`,
		append(stored.columns(), projects, subjects, begunAt, deadlines)...)
	if len(asks.ids) > 0 {
		batch.Queue(`
			INSERT INTO asks (job_id, controller_id, attempt, due_at)
			SELECT job_id, controller_id, attempt, due_at
			FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::timestamptz[])
				AS asked (job_id, controller_id, attempt, due_at)`, asks.columns()...)
		batch.Queue(`SELECT pg_notify($1, '')`, AskChannel)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store %d jobs: %w", len(begun), err)
	}
	var evaluated []Change
	for _, b := range begun {
		if b.Evaluated {
			evaluated = append(evaluated, Change{After: b.Job, First: true})
		}
	}
	messages, err := s.messages(ctx, evaluated)
	if err != nil {
		return err
	}
	if err := outbox.Insert(ctx, tx, slices.Concat(messages...)...); err != nil {
		return fmt.Errorf("publish the admission of %d jobs: %w", len(evaluated), err)
	}
	s.count(evaluated)
	return nil
}

// rows are jobs by columns, so that one statement stores all.
type rows struct {
	ids, preparations   []int64
	states              [][]byte
	outcomes, causes    []string
	answersBy, endTimes []*time.Time
}

func (r *rows) add(preparation int64, j decide.Job) error {
	state, err := json.Marshal(j.State)
	if err != nil {
		return fmt.Errorf("encode the state of job %d: %w", j.JobID, err)
	}
	r.ids, r.preparations = append(r.ids, j.JobID), append(r.preparations, preparation)
	r.states = append(r.states, state)
	r.outcomes, r.causes = append(r.outcomes, outcomeOf(j)), append(r.causes, string(j.State.Cause))
	r.answersBy, r.endTimes = append(r.answersBy, nullable(j.AnswerBy)), append(r.endTimes, nullable(j.EndedAt))
	return nil
}

func (r *rows) columns() []any {
	return []any{r.ids, r.preparations, r.states, r.outcomes, r.causes, r.answersBy, r.endTimes}
}

// questions are the questions of jobs by columns.
type questions struct {
	ids, controllers []int64
	attempts         []int32
	due              []time.Time
}

func (q *questions) add(jobID int64, ask decide.Ask) {
	q.ids, q.controllers = append(q.ids, jobID), append(q.controllers, ask.ControllerID)
	q.attempts, q.due = append(q.attempts, int32(ask.Attempt)), append(q.due, ask.DueAt)
}

func (q *questions) columns() []any { return []any{q.ids, q.controllers, q.attempts, q.due} }

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
