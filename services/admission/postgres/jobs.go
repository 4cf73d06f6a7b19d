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

// Change is a job before and after an input, with its next question.
type Change struct {
	Before, After decide.Job
	Ask           *decide.Ask
	// Ended is the request whose answer is the input; nil for another input.
	Ended *Ended
	// First is set for the first change of a job, whose events have all its prerequisites.
	First bool
}

// messages returns the events of each change.
func (s Jobs) messages(ctx context.Context, changes []Change) ([][]*nats.Msg, error) {
	all := make([][]*nats.Msg, len(changes))
	for i := range changes {
		var before *decide.Job
		if !changes[i].First {
			before = &changes[i].Before
		}
		var err error
		if all[i], err = s.Encoder.Changes(ctx, before, changes[i].After); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// count counts the decisions.
func (s Jobs) count(changes []Change) {
	for _, c := range changes {
		if !c.After.Open() {
			s.Metrics.decided.WithLabelValues(outcomeOf(c.After), string(c.After.State.Cause)).Inc()
		}
	}
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
	conflicts, err := s.saveIn(ctx, tx, []Change{{Before: before, After: after, Ask: ask}}, nil)
	if err == nil && len(conflicts) > 0 {
		err = fmt.Errorf("store job %d: %w", after.JobID, ErrConflict)
	}
	return err
}

// SaveAll stores changes, and the results of requests that change no job, in one transaction. It omits jobs that have
// changed since they were loaded, with the results of their requests, and returns their ids.
func (s Jobs) SaveAll(ctx context.Context, changes []Change, ended []Ended) (conflicts []int64, err error) {
	if len(changes) == 0 && len(ended) == 0 {
		return nil, nil
	}
	err = postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		conflicts, err = s.saveIn(ctx, tx, changes, ended)
		return err
	})
	return conflicts, err
}

// saveIn returns the ids of the jobs that had changed, and are not stored. It locks jobs in the order of their ids
// before the statement that changes them, which sees what others have committed until then.
func (s Jobs) saveIn(ctx context.Context, tx pgx.Tx, changes []Change, ended []Ended) ([]int64, error) {
	messages, err := s.messages(ctx, changes)
	if err != nil {
		return nil, err
	}
	var c changeColumns
	for i := range changes {
		if err := c.add(changes[i], messages[i]); err != nil {
			return nil, err
		}
	}
	for _, e := range ended {
		c.ended.add(e, 0)
	}
	published, err := outbox.RowsOf(slices.Concat(messages...)...)
	if err != nil {
		return nil, fmt.Errorf("publish the admission of %d jobs: %w", len(changes), err)
	}
	saved := map[int64]bool{}
	var batch pgx.Batch
	batch.Queue(`SELECT FROM jobs WHERE job_id = ANY ($1) ORDER BY job_id FOR NO KEY UPDATE`, c.after.ids)
	batch.Queue(saveChanges, c.columns(published)...).Query(func(found pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(found, []any{&id}, func() error {
			saved[id] = true
			return nil
		})
		return err //nolint:wrapcheck // the caller wraps it
	})
	if len(c.next.ids) > 0 {
		batch.Queue(`SELECT pg_notify($1, '')`, AskChannel)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("store %d jobs and the results of %d attempts: %w", len(changes), len(c.ended.ids), err)
	}
	var conflicts []int64
	stored := make([]Change, 0, len(changes))
	for _, change := range changes {
		if saved[change.After.JobID] {
			stored = append(stored, change)
		} else {
			conflicts = append(conflicts, change.After.JobID)
		}
	}
	s.count(stored)
	return conflicts, nil
}

// saveChanges stores jobs that are as they were when they were loaded, each with its question, its events and the
// result of its attempt.
var saveChanges = `
	WITH saved AS (
		UPDATE jobs j SET state = c.state, outcome = c.outcome, cause = c.cause, answer_by = c.answer_by,
			ended_at = c.ended_at, version = j.version + 1
		FROM unnest($1::bigint[], $2::bigint[], $3::jsonb[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[],
			$8::bigint[]) AS c (job_id, preparation, state, outcome, cause, answer_by, ended_at, version)
		WHERE j.job_id = c.job_id AND j.version = c.version AND j.preparation = c.preparation AND j.outcome = 'open'
		RETURNING j.job_id, j.outcome
	), over AS (
		DELETE FROM asks a USING saved s WHERE a.job_id = s.job_id AND s.outcome <> 'open'
	), next AS (
		UPDATE asks a SET controller_id = q.controller_id, attempt = q.attempt, due_at = q.due_at
		FROM unnest($9::bigint[], $10::bigint[], $11::int[], $12::timestamptz[]) AS q (job_id, controller_id, attempt, due_at)
			JOIN saved USING (job_id)
		WHERE a.job_id = q.job_id
	), ended AS (
		UPDATE attempts a SET ended_at = e.at, status = e.status, result = e.result
		FROM unnest($13::bigint[], $14::bigint[], $15::int[], $16::text[], $17::timestamptz[])
			AS e (id, changes, status, result, at)
		WHERE a.id = e.id AND a.used_at IS NULL AND (e.changes = 0 OR e.changes IN (SELECT job_id FROM saved))
	), published AS (` + outbox.InsertRows(`(
		SELECT m.subject, m.header, m.data
		FROM unnest($18::bigint[], $19::text[], $20::text[], $21::bytea[])
			WITH ORDINALITY AS m (job_id, subject, header, data, position) JOIN saved USING (job_id)
		ORDER BY m.position) AS messages`) + `
	)
	SELECT job_id FROM saved`

// changeColumns are changes by columns, so that one statement stores all.
type changeColumns struct {
	after    rows
	versions []int64
	next     questions
	ended    results
	// published has the job of each message.
	published []int64
}

func (c *changeColumns) add(change Change, messages []*nats.Msg) error {
	if err := c.after.add(change.Before.Preparation, change.After); err != nil {
		return err
	}
	c.versions = append(c.versions, change.Before.Version)
	if change.Ask != nil {
		c.next.add(change.After.JobID, *change.Ask)
	}
	if change.Ended != nil {
		c.ended.add(*change.Ended, change.After.JobID)
	}
	for range messages {
		c.published = append(c.published, change.After.JobID)
	}
	return nil
}

func (c *changeColumns) columns(published outbox.Rows) []any {
	return slices.Concat(c.after.columns(), []any{c.versions}, c.next.columns(), c.ended.columns(),
		[]any{c.published, published.Subjects, published.Headers, published.Data})
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
