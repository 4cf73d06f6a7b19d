package move

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// Driver takes the steps of moves. All fields are required, unless they have a default.
type Driver struct {
	Pool  *pgxpool.Pool
	Store Store
	State State
	// Target returns the client of a target.
	Target  func(m Move, token string) Target
	Objects Objects
	Map     Map
	Logger  *slog.Logger
	Now     func() time.Time
	// Interval between two attempts. Defaults to a second.
	Interval time.Duration

	// cleanedAt is when [Store.ForgetMovedJobs] was called last.
	cleanedAt time.Time
}

// Channel is the channel of notifications about moves that changed.
const Channel = "lockstep_runners_moves"

const (
	defaultInterval = time.Second
	cleanInterval   = time.Hour
)

// Run drives all moves until ctx is done or the database fails. It calls ready once this replica does so, or another.
func (d *Driver) Run(ctx context.Context, ready func()) error {
	return postgres.ExclusiveWork{
		Lock: "moves", Interval: cmp.Or(d.Interval, defaultInterval), Channel: Channel, Ready: ready,
		Do: func(ctx context.Context, _ *pgx.Conn) error { return d.Once(ctx) },
	}.Run(ctx, d.Pool)
}

// Once takes all steps that are possible now. It returns an error if the database fails.
func (d *Driver) Once(ctx context.Context) error {
	if now := d.Now(); now.Sub(d.cleanedAt) >= cleanInterval {
		if err := d.Store.ForgetMovedJobs(ctx); err != nil {
			return fmt.Errorf("forget jobs that moved: %w", err)
		}
		d.cleanedAt = now
	}
	moves, err := d.Store.Departures(ctx)
	if err != nil {
		return fmt.Errorf("read the moves: %w", err)
	}
	for _, m := range moves {
		for again := true; again && ctx.Err() == nil; {
			if m, again, err = d.Step(ctx, m); err != nil {
				return err
			}
		}
	}
	return d.revokeTokens(ctx)
}

// revokeTokens revokes the tokens for this cell of moves that have ended.
func (d *Driver) revokeTokens(ctx context.Context) error {
	moves, err := d.Store.Ended(ctx)
	if err != nil {
		return fmt.Errorf("read the moves that have ended: %w", err)
	}
	for _, m := range moves {
		err := d.revokeTokensOf(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			d.Logger.WarnContext(ctx, "revoking the tokens of a move failed; trying again",
				slog.String(logkey.MoveID, m.ID), logkey.Error(err))
			continue
		}
		if err := d.Store.ForgetTokens(ctx, m); err != nil {
			return fmt.Errorf("forget the tokens of move %s: %w", m.ID, err)
		}
	}
	return nil
}

// revokeTokensOf returns nil also for tokens that nobody can use any more, or that cannot be read.
func (d *Driver) revokeTokensOf(ctx context.Context, m Move) error {
	tokens, err := d.Store.Tokens(ctx, m)
	if err == nil {
		for _, token := range append(tokens.Replaced, tokens.Source) {
			if err := d.State.Revoke(ctx, token); err != nil && !refused(err) {
				return err
			}
		}
	}
	if refused(err) {
		return nil
	}
	return err
}

// refused reports whether a token is not valid or may not be used.
func refused(err error) bool {
	return fault.Is(err, errcode.Unauthenticated) || fault.Is(err, errcode.PermissionDenied)
}

// errWaits is the result of an action that goes on when something has happened in this cell.
var errWaits = errors.New("jobs are running")

// Step does what is next for a move. It returns the move after it, and whether another step may follow at once. An
// error is one of the database; others are the message of the move.
func (d *Driver) Step(ctx context.Context, m Move) (after Move, again bool, err error) {
	stored := m
	m, action := m.Next(d.Now())
	if m.Phase != stored.Phase {
		return d.change(ctx, m, stored)
	}
	if action == ActionNone {
		return m, false, nil
	}
	err = d.act(ctx, m, action)
	switch {
	case ctx.Err() != nil:
		return m, false, ctx.Err()
	case errors.Is(err, errWaits):
		return d.message(ctx, m, "")
	case err != nil:
		failed := m.Failed(err)
		d.Logger.WarnContext(ctx, "a step of a move failed", slog.String(logkey.MoveID, m.ID),
			slog.String(logkey.Phase, string(m.Phase)), logkey.Error(err))
		if failed.Phase == m.Phase {
			return d.message(ctx, m, failed.Message)
		}
		return d.change(ctx, failed, stored)
	default:
		return d.change(ctx, m.Succeeded(d.Now().UTC().Truncate(time.Millisecond)), stored)
	}
}

// message stores why a move waits.
func (d *Driver) message(ctx context.Context, m Move, text string) (Move, bool, error) {
	if m.Message == text {
		return m, false, nil
	}
	m.Message = text
	if _, err := d.Store.Change(ctx, m, m.Phase); err != nil {
		return m, false, fmt.Errorf("store why move %s waits: %w", m.ID, err)
	}
	return m, false, nil
}

// change stores the next phase. Another replica, or an administrator, may have been faster.
func (d *Driver) change(ctx context.Context, m, stored Move) (Move, bool, error) {
	changed, err := d.Store.Change(ctx, m, stored.Phase)
	if err != nil {
		return stored, false, fmt.Errorf("change move %s from %s to %s: %w", m.ID, stored.Phase, m.Phase, err)
	}
	if !changed {
		return stored, false, nil
	}
	d.Logger.InfoContext(ctx, "a move of an organization went on", slog.String(logkey.MoveID, m.ID),
		slog.Int64(logkey.OrganizationID, m.OrganizationID), slog.String(logkey.Phase, string(m.Phase)))
	return m, !m.Phase.Ended(), nil
}

func (d *Driver) act(ctx context.Context, m Move, action Action) error {
	tokens, err := d.Store.Tokens(ctx, m)
	if err != nil {
		return err
	}
	target := d.Target(m, tokens.Target)
	switch action {
	case ActionCopy:
		return d.copy(ctx, m, tokens, target)
	case ActionOpen:
		return d.open(ctx, m, target)
	case ActionHandOver:
		return d.handOver(ctx, m, target)
	case ActionEnd:
		return d.end(ctx, m, tokens, target)
	case ActionUndo:
		return d.undo(ctx, m, tokens, target)
	case ActionNone:
	}
	return nil
}

// copy copies the directory and the runners.
func (d *Driver) copy(ctx context.Context, m Move, tokens Tokens, target Target) error {
	// A move that takes too long is canceled. This step must not outlive the move.
	ctx, cancel := context.WithDeadline(ctx, time.Now().Add(m.CancelAt.Sub(d.Now())))
	defer cancel()
	if err := d.State.Begin(ctx, tokens.Source, m); err != nil {
		return fmt.Errorf("begin at the state service: %w", err)
	}
	err := target.Begin(ctx, m, func(to Arrival) error {
		if err := d.State.Export(ctx, tokens.Source, m, to.Records); err != nil {
			return fmt.Errorf("export the directory: %w", err)
		}
		return d.Store.Runners(ctx, m.OrganizationID, to.Row)
	})
	if err != nil {
		return fmt.Errorf("copy to cell %s: %w", m.Cell, err)
	}
	return nil
}

// open gives the organization to the target, and tells the routers.
func (d *Driver) open(ctx context.Context, m Move, target Target) error {
	if err := target.Open(ctx, m); err != nil {
		return fmt.Errorf("open the organization in cell %s: %w", m.Cell, err)
	}
	if err := d.Map.PutMoved(ctx, m.OrganizationID, m.Cell, m.Number); err != nil {
		return fault.Wrap(err, errcode.Unavailable, "the cell map cannot be written: check its NATS")
	}
	return nil
}

// handOver moves all pipelines that no runner has a job of.
func (d *Driver) handOver(ctx context.Context, m Move, target Target) error {
	for ctx.Err() == nil {
		id, left, err := d.Store.Next(ctx, m.OrganizationID)
		switch {
		case err != nil:
			return fmt.Errorf("find the next pipeline: %w", err)
		case !left:
			return nil
		case id == 0:
			return errWaits
		}
		if err := d.send(ctx, m, target, id); err != nil {
			return fmt.Errorf("move pipeline %d: %w", id, err)
		}
		if err := d.Store.ForgetPipeline(ctx, id); err != nil {
			return fmt.Errorf("forget pipeline %d, which cell %s has: %w", id, m.Cell, err)
		}
	}
	return ctx.Err()
}

// send sends a pipeline, the content of its artifacts first.
func (d *Driver) send(ctx context.Context, m Move, target Target, id int64) error {
	artifacts, err := d.Store.Artifacts(ctx, id)
	if err != nil {
		return err
	}
	rows := make([]*runnersv1.MovedRow, 0, len(artifacts))
	for _, a := range artifacts {
		object, err := d.sendContent(ctx, m, target, a)
		if err != nil {
			return err
		}
		if object == "" {
			continue
		}
		row, err := a.In(object)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return target.Pipeline(ctx, m, id, func(send func(Piece) error) error {
		if err := d.Store.Pipeline(ctx, id, send); err != nil {
			return err
		}
		for _, row := range rows {
			if err := send(Piece{Row: row}); err != nil {
				return err
			}
		}
		return nil
	})
}

// sendContent returns the key in the target; empty for content that this cell has lost.
func (d *Driver) sendContent(ctx context.Context, m Move, target Target, a Artifact) (string, error) {
	content, _, err := d.Objects.Open(ctx, a.Object)
	if fault.Is(err, errcode.NotFound) {
		d.Logger.ErrorContext(ctx, "the content of an artifact is lost: the artifact does not move",
			slog.Int64(logkey.JobID, a.JobID), logkey.Error(err))
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open an artifact of job %d: %w", a.JobID, err)
	}
	defer content.Close() //nolint:errcheck // only read
	object, err := target.Artifact(ctx, m, a, content)
	if err != nil {
		return "", fmt.Errorf("send an artifact of job %d: %w", a.JobID, err)
	}
	return object, nil
}

// TableArtifacts is the table of artifacts in rows that move.
const TableArtifacts = "artifacts"

// In returns the row of the artifact with the key of its content in the target.
func (a Artifact) In(object string) (*runnersv1.MovedRow, error) {
	var columns map[string]json.RawMessage
	if err := json.Unmarshal(a.Row, &columns); err != nil {
		return nil, fmt.Errorf("decode the row of an artifact of job %d: %w", a.JobID, err)
	}
	key, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode the key of an artifact of job %d: %w", a.JobID, err)
	}
	columns["object"] = key
	content, err := json.Marshal(columns)
	if err != nil {
		return nil, fmt.Errorf("encode the row of an artifact of job %d: %w", a.JobID, err)
	}
	return &runnersv1.MovedRow{Table: TableArtifacts, Content: content}, nil
}

// end ends the move in both cells, the source first.
func (d *Driver) end(ctx context.Context, m Move, tokens Tokens, target Target) error {
	if err := d.Store.ForgetRunners(ctx, m.OrganizationID); err != nil {
		return fmt.Errorf("remove the runners: %w", err)
	}
	source, err := d.State.End(ctx, tokens.Source, m, statev1.MoveOutcome_MOVE_OUTCOME_MOVED)
	if err != nil {
		return fmt.Errorf("end at the state service: %w", err)
	}
	if err := target.End(ctx, m, statev1.MoveOutcome_MOVE_OUTCOME_MOVED, source); err != nil {
		return fmt.Errorf("end in cell %s: %w", m.Cell, err)
	}
	return nil
}

// undo cancels the move in both cells. The source goes on at once, also if the target does not answer.
func (d *Driver) undo(ctx context.Context, m Move, tokens Tokens, target Target) error {
	const canceled = statev1.MoveOutcome_MOVE_OUTCOME_CANCELED
	if _, err := d.State.End(ctx, tokens.Source, m, canceled); err != nil {
		return fmt.Errorf("cancel at the state service: %w", err)
	}
	if err := target.End(ctx, m, canceled, nil); err != nil {
		return fmt.Errorf("cancel in cell %s: %w", m.Cell, err)
	}
	return nil
}
