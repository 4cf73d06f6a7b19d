package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/admission/callback"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/decide"
)

// EvaluationLane is the id of the lane of new jobs: their conditions and policies are evaluated before a controller is
// asked.
const EvaluationLane = 0

// Lane is a controller with questions, or the lane of new jobs.
type Lane struct {
	// Controller has the id [EvaluationLane] for new jobs.
	Controller controller.Controller
	// NextDue is when the next question is due; the zero time if all wait for callbacks.
	NextDue time.Time
}

// lanes steps from controller to controller in the index: it does not read the questions of each.
const lanes = `
	WITH RECURSIVE lanes AS (
		(SELECT controller_id FROM asks ORDER BY controller_id LIMIT 1)
		UNION ALL
		SELECT (SELECT controller_id FROM asks WHERE controller_id > l.controller_id ORDER BY controller_id LIMIT 1)
		FROM lanes l WHERE l.controller_id IS NOT NULL
	)
	SELECT ` + controllerColumns + `, (SELECT min(due_at) FROM asks WHERE controller_id = c.id)
	FROM lanes l JOIN controllers c ON c.id = l.controller_id
	UNION ALL
	SELECT 0, '', 0, 0, 0, '{}', '', 0, now(), now(), false, now(), min(due_at) FROM asks WHERE controller_id = 0
	HAVING count(*) > 0`

// Lanes returns the controllers that are asked.
func (s Jobs) Lanes(ctx context.Context) ([]Lane, error) {
	rows, err := s.Pool.Query(ctx, lanes)
	if err != nil {
		return nil, fmt.Errorf("find what is to be asked: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Lane, error) {
		var l Lane
		var settings []byte
		var due *time.Time
		if err := row.Scan(append(controllerTargets(&l.Controller, &settings), &due)...); err != nil {
			return l, err //nolint:wrapcheck // the caller wraps it
		}
		l.NextDue = timeOf(due)
		return l, readSettings(&l.Controller, settings)
	})
	if err != nil {
		return nil, fmt.Errorf("find what is to be asked: %w", err)
	}
	return found, nil
}

// Claim is how many questions to a controller a replica takes, and for how long.
type Claim struct {
	ControllerID int64
	Count        int
	Lease        time.Duration
}

// Claimed is a question that a replica has taken.
type Claimed struct {
	chain.Question

	JobID int64
}

// Claim takes due questions. Another replica gets them when the lease has ended and they are not answered.
func (s Jobs) Claim(ctx context.Context, at time.Time, claims []Claim) ([]Claimed, error) {
	ids, counts, leases := make([]int64, len(claims)), make([]int32, len(claims)), make([]time.Time, len(claims))
	for i, c := range claims {
		ids[i], counts[i], leases[i] = c.ControllerID, int32(c.Count), at.Add(c.Lease)
	}
	rows, err := s.Pool.Query(ctx, `
		WITH due AS (
			SELECT a.job_id, l.until FROM unnest($1::bigint[], $2::int[], $3::timestamptz[]) AS l (controller_id, count, until)
			CROSS JOIN LATERAL (
				SELECT job_id FROM asks WHERE controller_id = l.controller_id AND due_at <= $4
				ORDER BY due_at LIMIT l.count FOR UPDATE SKIP LOCKED
			) AS a
		)
		UPDATE asks SET due_at = due.until FROM due WHERE asks.job_id = due.job_id
		RETURNING asks.job_id, asks.controller_id, asks.attempt`, ids, counts, leases, at)
	if err != nil {
		return nil, fmt.Errorf("take questions: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Claimed, error) {
		var c Claimed
		err := row.Scan(&c.JobID, &c.ControllerID, &c.Attempt)
		return c, err //nolint:wrapcheck // the caller wraps it
	})
	if err != nil {
		return nil, fmt.Errorf("take questions: %w", err)
	}
	return found, nil
}

// AwaitCallbacks leaves questions to callbacks: they are not sent again. It ends their requests, one for each question.
func (s Jobs) AwaitCallbacks(ctx context.Context, claimed []Claimed, ended []Ended, at time.Time) error {
	var asked questions
	for _, c := range claimed {
		asked.add(c.JobID, decide.Ask{Question: c.Question, DueAt: at})
	}
	return postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(`SELECT FROM asks WHERE job_id = ANY ($1) ORDER BY job_id FOR NO KEY UPDATE`, asked.ids)
		batch.Queue(`
			UPDATE asks a SET due_at = NULL
			FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::timestamptz[]) AS q (job_id, controller_id, attempt, at)
			WHERE a.job_id = q.job_id AND a.controller_id = q.controller_id AND a.attempt = q.attempt AND a.due_at > q.at`,
			asked.columns()...)
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return fmt.Errorf("wait for callbacks about %d jobs: %w", len(claimed), err)
		}
		return endAttempts(ctx, tx, ended)
	})
}

// ReleaseClaim gives a question back that was not sent.
func (s Jobs) ReleaseClaim(ctx context.Context, c Claimed, at time.Time) error {
	_, err := s.Pool.Exec(ctx,
		`UPDATE asks SET due_at = $4 WHERE job_id = $1 AND controller_id = $2 AND attempt = $3`,
		c.JobID, c.ControllerID, c.Attempt, at)
	if err != nil {
		return fmt.Errorf("give back the question of job %d: %w", c.JobID, err)
	}
	return nil
}

// Attempt is a request to a web server.
type Attempt struct {
	chain.Question

	ID, JobID int64
	SentAt    time.Time
	// EndedAt is the zero time, and Result empty, if the replica that sent it recorded nothing.
	EndedAt time.Time
	// Status is that of the response; 0 without one.
	Status int
	Result string
	// CallbackHash and ReadHash are nil without a public address.
	CallbackHash, ReadHash []byte
	ExpiresAt, UsedAt      time.Time
}

// Token returns the stored callback token of the attempt; false if it has none.
func (a Attempt) Token() (callback.Stored, bool) {
	if len(a.CallbackHash) != len(callback.Hash{}) {
		return callback.Stored{}, false
	}
	return callback.Stored{
		Subject: callback.Subject{JobID: a.JobID, ControllerID: a.ControllerID, Attempt: a.Attempt},
		Hash:    callback.Hash(a.CallbackHash), ExpiresAt: a.ExpiresAt, UsedAt: a.UsedAt,
	}, true
}

// BeginAttempts stores attempts before their requests are sent, at most one for each job. It returns their ids by the
// ids of the jobs.
func (s Jobs) BeginAttempts(ctx context.Context, attempts []Attempt) (map[int64]int64, error) {
	n := len(attempts)
	sent, expires := make([]time.Time, n), make([]time.Time, n)
	callbacks, reads := make([][]byte, n), make([][]byte, n)
	var asked questions
	for i, a := range attempts {
		asked.add(a.JobID, decide.Ask{Question: a.Question, DueAt: a.SentAt})
		sent[i], expires[i], callbacks[i], reads[i] = a.SentAt, a.ExpiresAt, a.CallbackHash, a.ReadHash
	}
	stored, err := s.Pool.Query(ctx, `
		INSERT INTO attempts (job_id, controller_id, attempt, sent_at, callback_hash, read_hash, expires_at)
		SELECT job_id, controller_id, attempt, sent_at, callback_hash, read_hash, expires_at
		FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::timestamptz[], $5::bytea[], $6::bytea[], $7::timestamptz[])
			AS sent (job_id, controller_id, attempt, sent_at, callback_hash, read_hash, expires_at)
		RETURNING job_id, id`, append(asked.columns(), callbacks, reads, expires)...)
	if err != nil {
		return nil, fmt.Errorf("record attempts of %d jobs: %w", n, err)
	}
	ids := make(map[int64]int64, n)
	var jobID, id int64
	_, err = pgx.ForEachRow(stored, []any{&jobID, &id}, func() error {
		ids[jobID] = id
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("record attempts of %d jobs: %w", n, err)
	}
	return ids, nil
}

// Ended is the result of a request.
type Ended struct {
	AttemptID int64
	// Status is that of the response; 0 without one.
	Status int
	Result string
	At     time.Time
}

// Store stores the result.
func (e Ended) Store(ctx context.Context, tx pgx.Tx) error { return endAttempts(ctx, tx, []Ended{e}) }

// results are results of requests by columns.
type results struct {
	ids, changes []int64
	statuses     []int32
	texts        []string
	times        []time.Time
}

// add adds a result. change is the job that changes with it; 0 if none does.
func (r *results) add(e Ended, change int64) {
	r.ids, r.changes = append(r.ids, e.AttemptID), append(r.changes, change)
	r.statuses, r.texts = append(r.statuses, int32(e.Status)), append(r.texts, e.Result)
	r.times = append(r.times, e.At)
}

func (r *results) columns() []any { return []any{r.ids, r.changes, r.statuses, r.texts, r.times} }

// endAttempts stores results of requests. That of a callback, which may come before the response, stays.
func endAttempts(ctx context.Context, tx pgx.Tx, ended []Ended) error {
	if len(ended) == 0 {
		return nil
	}
	var r results
	for _, e := range ended {
		r.add(e, 0)
	}
	_, err := tx.Exec(ctx, `
		UPDATE attempts a SET ended_at = e.at, status = e.status, result = e.result
		FROM unnest($1::bigint[], $2::int[], $3::text[], $4::timestamptz[]) AS e (id, status, result, at)
		WHERE a.id = e.id AND a.used_at IS NULL`, r.ids, r.statuses, r.texts, r.times)
	if err != nil {
		return fmt.Errorf("record the results of %d attempts: %w", len(ended), err)
	}
	return nil
}

// UseToken returns a function that marks the token of an attempt as used. Its error is [callback.ErrUsed] if it is.
func UseToken(id int64, result string, at time.Time) func(ctx context.Context, tx pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx,
			`UPDATE attempts SET used_at = $2, ended_at = $2, result = $3 WHERE id = $1 AND used_at IS NULL`, id, at, result)
		if err != nil {
			return fmt.Errorf("use the token of attempt %d: %w", id, err)
		}
		if tag.RowsAffected() == 0 {
			return callback.ErrUsed
		}
		return nil
	}
}

const attemptColumns = `id, job_id, controller_id, attempt, sent_at, ended_at, status, result, callback_hash, read_hash,
	expires_at, used_at`

func (s Jobs) attempts(ctx context.Context, rest string, args ...any) ([]Attempt, error) {
	rows, err := s.Pool.Query(ctx, `SELECT `+attemptColumns+` FROM attempts `+rest, args...)
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Attempt, error) {
		var a Attempt
		var ended, used *time.Time
		err := row.Scan(&a.ID, &a.JobID, &a.ControllerID, &a.Attempt, &a.SentAt, &ended, &a.Status, &a.Result,
			&a.CallbackHash, &a.ReadHash, &a.ExpiresAt, &used)
		a.SentAt, a.EndedAt, a.UsedAt, a.ExpiresAt = a.SentAt.UTC(), timeOf(ended), timeOf(used), a.ExpiresAt.UTC()
		return a, err //nolint:wrapcheck // the caller wraps it
	})
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	return found, nil
}

// AttemptsOf returns the requests of one attempt: several if a replica was killed.
func (s Jobs) AttemptsOf(ctx context.Context, subject callback.Subject) ([]Attempt, error) {
	return s.attempts(ctx, `WHERE job_id = $1 AND controller_id = $2 AND attempt = $3 ORDER BY id`,
		subject.JobID, subject.ControllerID, subject.Attempt)
}

// maxAttempts is the number of attempts that [Jobs.AttemptsOfJob] returns at most.
const maxAttempts = 1000

// AttemptsOfJob returns the requests about the last preparation of a job in their order, of many the last ones.
func (s Jobs) AttemptsOfJob(ctx context.Context, jobID int64) ([]Attempt, error) {
	return s.attempts(ctx, `WHERE id IN (SELECT id FROM attempts WHERE job_id = $1 ORDER BY id DESC LIMIT $2) ORDER BY id`,
		jobID, maxAttempts)
}

// ErrNoAttempt reports a token of no attempt.
var ErrNoAttempt = errors.New("no attempt has this token")

// AttemptByReadHash returns the attempt with a read token.
func (s Jobs) AttemptByReadHash(ctx context.Context, hash []byte) (Attempt, error) {
	found, err := s.attempts(ctx, `WHERE read_hash = $1`, hash)
	if err == nil && len(found) == 0 {
		err = ErrNoAttempt
	}
	if err != nil {
		return Attempt{}, err
	}
	return found[0], nil
}
