package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/signingkey"
)

// SigningKeys stores the keys that sign job tokens. Private keys are sealed.
type SigningKeys struct {
	DB       postgres.Beginner
	Key      seal.Key
	Schedule signingkey.Schedule
	Logger   *slog.Logger
	Now      func() time.Time
}

// Rotate creates a new key if one is due, deletes expired keys and returns the current keys. Only one replica makes
// each change. A key that cannot be opened has no private part.
func (s SigningKeys) Rotate(ctx context.Context) ([]signingkey.Key, error) {
	var keys []signingkey.Key
	err := postgres.InTx(ctx, s.DB, func(tx pgx.Tx) error {
		var err error
		if keys, err = s.read(ctx, tx); err != nil || s.Schedule.Plan(s.Now(), keys).Empty() {
			return err
		}
		// Another replica may do the same, so read again under the lock. It does not block readers.
		if _, err := tx.Exec(ctx, `LOCK TABLE signing_keys IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return fmt.Errorf("lock the signing keys: %w", err)
		}
		if keys, err = s.read(ctx, tx); err != nil {
			return err
		}
		keys, err = s.apply(ctx, tx, s.Schedule.Plan(s.Now(), keys), keys)
		return err
	})
	return keys, err
}

// apply returns the keys after the plan.
func (s SigningKeys) apply(
	ctx context.Context, tx pgx.Tx, plan signingkey.Plan, keys []signingkey.Key,
) ([]signingkey.Key, error) {
	for _, expired := range plan.Expired {
		if _, err := tx.Exec(ctx, `DELETE FROM signing_keys WHERE id = $1`, expired.ID); err != nil {
			return nil, fmt.Errorf("delete signing key %s: %w", expired.ID, err)
		}
		keys = slices.DeleteFunc(keys, func(k signingkey.Key) bool { return k.ID == expired.ID })
	}
	if !plan.Create {
		return keys, nil
	}
	created, err := s.Schedule.New(s.Now())
	if err != nil {
		return nil, err
	}
	box, err := signingkey.Seal(created.Private, signingKeyLabel(created.ID), s.Key)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO signing_keys (id, public, private, made_at, not_after) VALUES ($1, $2, $3, $4, $5)`,
		created.ID, []byte(created.Public), box, created.MadeAt, created.NotAfter); err != nil {
		return nil, fmt.Errorf("store signing key %s: %w", created.ID, err)
	}
	s.Logger.InfoContext(ctx, "created a key for job tokens",
		slog.String(logkey.KeyID, created.ID), slog.Time(logkey.NotAfter, created.NotAfter))
	return append(keys, created), nil
}

func (s SigningKeys) read(ctx context.Context, tx pgx.Tx) ([]signingkey.Key, error) {
	rows, err := tx.Query(ctx, `SELECT id, public, private, made_at, not_after FROM signing_keys ORDER BY made_at, id`)
	if err != nil {
		return nil, fmt.Errorf("read the signing keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (signingkey.Key, error) {
		var k signingkey.Key
		var box []byte
		if err := row.Scan(&k.ID, (*[]byte)(&k.Public), &box, &k.MadeAt, &k.NotAfter); err != nil {
			return k, err //nolint:wrapcheck // the caller wraps it
		}
		private, err := signingkey.Open(box, signingKeyLabel(k.ID), s.Key)
		if err != nil {
			s.Logger.ErrorContext(ctx, "decrypting a key for job tokens failed; it signs no more",
				slog.String(logkey.KeyID, k.ID), logkey.Error(err))
			return k, nil
		}
		k.Private = private
		return k, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the signing keys: %w", err)
	}
	return keys, nil
}

func signingKeyLabel(id string) string { return "job_token_signing_key/" + id }
