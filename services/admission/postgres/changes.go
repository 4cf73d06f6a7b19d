package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/admission/decide"
)

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
