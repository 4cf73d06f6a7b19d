package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
)

// Moves stores moves of organizations from this cell and to it. It is a [move.Store].
type Moves struct {
	Pool *pgxpool.Pool
	Jobs Jobs
	// Key seals tokens.
	Key seal.Key
	Now func() time.Time
}

var _ move.Store = Moves{}

const moveColumns = `id, organization_id, arrival, cell, url, number, phase, message, started_by, started_at, cancel_at,
	ended_at`

func scanMove(row pgx.CollectableRow) (move.Move, error) {
	var m move.Move
	var cancel, ended *time.Time
	err := row.Scan(&m.ID, &m.OrganizationID, &m.Arrival, &m.Cell, &m.URL, &m.Number, &m.Phase, &m.Message, &m.StartedBy,
		&m.StartedAt, &cancel, &ended)
	m.StartedAt, m.CancelAt, m.EndedAt = m.StartedAt.UTC(), timeOf(cancel), timeOf(ended)
	return m, err //nolint:wrapcheck // the caller wraps it
}

func readMoves(ctx context.Context, db Querier, condition string, args ...any) ([]move.Move, error) {
	return collect(ctx, db, "moves", scanMove, `SELECT `+moveColumns+` FROM moves WHERE `+condition, args...)
}

// Departures implements [move.Store].
func (s Moves) Departures(ctx context.Context) ([]move.Move, error) {
	return readMoves(ctx, s.Pool, `NOT arrival AND ended_at IS NULL ORDER BY started_at, id`)
}

// Ended implements [move.Store].
func (s Moves) Ended(ctx context.Context) ([]move.Move, error) {
	return readMoves(ctx, s.Pool, `NOT arrival AND ended_at IS NOT NULL AND tokens IS NOT NULL ORDER BY started_at, id`)
}

// ForgetTokens implements [move.Store].
func (s Moves) ForgetTokens(ctx context.Context, m move.Move) error {
	_, err := s.Pool.Exec(ctx, `UPDATE moves SET tokens = NULL WHERE id = $1 AND ended_at IS NOT NULL`, m.ID)
	if err != nil {
		return postgres.Unavailable(ctx, fmt.Errorf("erase the tokens of move %s: %w", m.ID, err))
	}
	return nil
}

// maxMoves is how many moves a list has at most.
const maxMoves = 500

// List returns the moves from this cell and to it, the newest first.
func (s Moves) List(ctx context.Context) ([]move.Move, error) {
	return readMoves(ctx, s.Pool, `true ORDER BY started_at DESC, id LIMIT $1`, maxMoves)
}

// Latest returns the latest move of an organization from this cell. Fault not_found.
func (s Moves) Latest(ctx context.Context, organizationID int64) (move.Move, error) {
	found, err := readMoves(ctx, s.Pool, `organization_id = $1 AND NOT arrival ORDER BY started_at DESC LIMIT 1`,
		organizationID)
	if err == nil && len(found) == 0 {
		err = fault.New(errcode.NotFound, "organization %d was never moved from this cell", organizationID)
	}
	if err != nil {
		return move.Move{}, err
	}
	return found[0], nil
}

// latest selects, of each organization, the move that tells in which cell it is.
const latest = `phase NOT IN ('canceling', 'canceled') AND number = (SELECT max(number) FROM moves AS m
	WHERE m.organization_id = moves.organization_id AND m.phase NOT IN ('canceling', 'canceled'))`

// Announced returns the moves of the organizations that this cell had and others have. Their targets are open.
func (s Moves) Announced(ctx context.Context) ([]move.Move, error) {
	return readMoves(ctx, s.Pool, latest+` AND NOT arrival AND phase IN ('handing_over', 'ending', 'done')`)
}

// Returned returns the organizations that left this cell once and are back.
func (s Moves) Returned(ctx context.Context) ([]int64, error) {
	return collect(ctx, s.Pool, "moves", pgx.RowTo[int64], `SELECT organization_id FROM moves WHERE `+latest+` AND arrival
		AND phase IN ('open', 'done') AND EXISTS (SELECT FROM moves AS gone
			WHERE gone.organization_id = moves.organization_id AND NOT gone.arrival AND gone.phase = 'done')`)
}

// Begin stores a new move and the tokens for it. For one that goes on to the same cell, it replaces the tokens. Faults:
// failed_precondition for another move that goes on, organization_moving for an organization that is elsewhere.
func (s Moves) Begin(ctx context.Context, m move.Move, tokens move.Tokens) (move.Move, error) {
	err := postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockOrganization, m.OrganizationID); err != nil {
			return fmt.Errorf("lock organization %d: %w", m.OrganizationID, err)
		}
		goingOn, err := readMoves(ctx, tx, `organization_id = $1 AND ended_at IS NULL`, m.OrganizationID)
		switch {
		case err != nil:
			return err
		case len(goingOn) == 0:
			if m, err = s.insertDeparture(ctx, tx, m, tokens); err != nil {
				return err
			}
		case !goingOn[0].Arrival && goingOn[0].Cell == m.Cell:
			m = goingOn[0]
			if err := s.replaceTokens(ctx, tx, m, tokens); err != nil {
				return err
			}
		default:
			return errOtherMove(goingOn[0])
		}
		return notifyMoves(ctx, tx)
	})
	return m, postgres.Unavailable(ctx, err)
}

func errOtherMove(m move.Move) error {
	direction := "to"
	if m.Arrival {
		direction = "here from"
	}
	return fault.New(errcode.FailedPrecondition, "organization %d is being moved %s cell %s (%s): wait until that ends",
		m.OrganizationID, direction, m.Cell, m.Phase)
}

// insertDeparture stores a new move of an organization that is locked.
func (s Moves) insertDeparture(ctx context.Context, tx pgx.Tx, m move.Move, tokens move.Tokens) (move.Move, error) {
	box, err := s.seal(m.OrganizationID, tokens)
	if err != nil {
		return m, err
	}
	if err := shareOpen(ctx, tx, Owner{OrganizationID: m.OrganizationID}); err != nil {
		return m, err
	}
	err = tx.QueryRow(ctx, `
		INSERT INTO moves (id, organization_id, arrival, cell, url, number, phase, tokens, started_by, started_at, cancel_at)
		SELECT $1, $2, false, $3, $4, coalesce(max(number), 0) + 1, $5, $6, $7, $8, $9
		FROM moves WHERE organization_id = $2 AND phase <> 'canceled' RETURNING number`,
		m.ID, m.OrganizationID, m.Cell, m.URL, m.Phase, box, m.StartedBy, m.StartedAt, m.CancelAt).Scan(&m.Number)
	if err != nil {
		return m, fmt.Errorf("store move %s: %w", m.ID, err)
	}
	return m, nil
}

// replaceTokens gives a move that goes on new tokens. It keeps those of the source, to revoke them at the end.
func (s Moves) replaceTokens(ctx context.Context, tx pgx.Tx, m move.Move, tokens move.Tokens) error {
	before, err := s.readTokens(ctx, tx, m)
	switch {
	case fault.Is(err, errcode.Unauthenticated): // of another key: nobody can read them
	case err != nil:
		return err
	case before.Source != tokens.Source:
		tokens.Replaced = slices.Concat(before.Replaced, []string{before.Source})
		tokens.Replaced = tokens.Replaced[max(0, len(tokens.Replaced)-move.MaxReplaced):]
	default:
		tokens.Replaced = before.Replaced
	}
	box, err := s.seal(m.OrganizationID, tokens)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE moves SET tokens = $2 WHERE id = $1`, m.ID, box); err != nil {
		return fmt.Errorf("replace the tokens of move %s: %w", m.ID, err)
	}
	return nil
}

func notifyMoves(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, move.Channel); err != nil {
		return fmt.Errorf("notify replicas of moves: %w", err)
	}
	return nil
}

// Change implements [move.Store].
func (s Moves) Change(ctx context.Context, m move.Move, from move.Phase) (bool, error) {
	changed := false
	err := postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE moves SET phase = $3, message = $4, ended_at = $5
			WHERE id = $1 AND phase = $2 AND NOT arrival`, m.ID, from, m.Phase, m.Message, nullable(m.EndedAt))
		if err != nil {
			return fmt.Errorf("change move %s: %w", m.ID, err)
		}
		changed = tag.RowsAffected() == 1
		if !changed || m.Phase == from {
			return nil
		}
		if m.Phase == move.Canceling {
			const wake = `SELECT pg_notify($1, id::text) FROM jobs WHERE state = 'pending' AND organization_id = $2`
			if _, err := tx.Exec(ctx, wake, JobChannel, m.OrganizationID); err != nil {
				return fmt.Errorf("wake the jobs of organization %d: %w", m.OrganizationID, err)
			}
		}
		return notifyMoves(ctx, tx)
	})
	return changed && err == nil, postgres.Unavailable(ctx, err)
}

// Names of sealed values.
const sourceToken, targetToken = "source", "target"

func replacedToken(i int) string { return fmt.Sprintf("replaced_%d", i) }

func tokensLabel(organizationID int64) string { return fmt.Sprintf("move_tokens/%d", organizationID) }

func (s Moves) seal(organizationID int64, tokens move.Tokens) ([]byte, error) {
	values := seal.Values{sourceToken: seal.NewValue(tokens.Source), targetToken: seal.NewValue(tokens.Target)}
	for i, token := range tokens.Replaced {
		values[replacedToken(i)] = seal.NewValue(token)
	}
	box, err := values.Seal(tokensLabel(organizationID), s.Key.Public(), s.Key)
	if err != nil {
		return nil, fmt.Errorf("seal the tokens of a move: %w", err)
	}
	return box, nil
}

// Tokens implements [move.Store].
func (s Moves) Tokens(ctx context.Context, m move.Move) (move.Tokens, error) {
	return s.readTokens(ctx, s.Pool, m)
}

func (s Moves) readTokens(ctx context.Context, db Querier, m move.Move) (move.Tokens, error) {
	boxes, err := collect(ctx, db, "moves", pgx.RowTo[[]byte], `SELECT tokens FROM moves WHERE id = $1`, m.ID)
	if err != nil {
		return move.Tokens{}, err
	}
	if len(boxes) == 0 {
		return move.Tokens{}, fault.New(errcode.NotFound, "move %s does not exist", m.ID)
	}
	values, err := seal.OpenValues(boxes[0], tokensLabel(m.OrganizationID), s.Key.Public(), s.Key)
	if errors.Is(err, seal.ErrNotOpened) {
		return move.Tokens{}, fault.Wrap(err, errcode.Unauthenticated,
			"the tokens of the move cannot be read with the key in signing.key_file")
	}
	if err != nil {
		return move.Tokens{}, fmt.Errorf("open the tokens of move %s: %w", m.ID, err)
	}
	tokens := move.Tokens{Source: values[sourceToken].Reveal(), Target: values[targetToken].Reveal()}
	for i := range len(values) {
		if token, found := values[replacedToken(i)]; found {
			tokens.Replaced = append(tokens.Replaced, token.Reveal())
		}
	}
	return tokens, nil
}

// maxWaiting is how many jobs a report is about at most.
const maxWaiting = 10_000

// Waiting returns jobs of an organization that have not begun, at most 10,000.
func (s Moves) Waiting(ctx context.Context, organizationID int64) ([]job.Job, error) {
	return readJobs(ctx, s.Pool, `organization_id = $1 AND state IN ('created', 'preparing', 'pending')
		ORDER BY id LIMIT $2`, organizationID, maxWaiting)
}

// Counts returns what an organization has here.
func (s Moves) Counts(ctx context.Context, organizationID int64) (move.Counts, error) {
	var c move.Counts
	err := s.Pool.QueryRow(ctx, `
		WITH running AS (SELECT pipeline_id FROM jobs WHERE organization_id = $1 AND state IN ('running', 'canceling')),
			files AS (SELECT a.size FROM artifacts AS a JOIN jobs AS j ON j.id = a.job_id WHERE j.organization_id = $1
				AND (a.expires_at IS NULL OR a.expires_at > $2))
		SELECT (SELECT count(*) FROM running), (SELECT count(DISTINCT pipeline_id) FROM running),
			(SELECT count(*) FROM pipelines WHERE organization_id = $1),
			(SELECT count(*) FROM files), (SELECT coalesce(sum(size), 0)::bigint FROM files)`,
		organizationID, s.Now()).Scan(&c.Running, &c.PipelinesRunning, &c.Pipelines, &c.Artifacts, &c.ArtifactBytes)
	if err != nil {
		return c, postgres.Unavailable(ctx, fmt.Errorf("count what organization %d has: %w", organizationID, err))
	}
	return c, nil
}
