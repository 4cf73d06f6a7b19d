package postgres

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/signing"
	"lockstep.internal/services/state/vault"
)

// SigningKeys stores the keys that sign access tokens. Private keys are sealed.
type SigningKeys struct {
	Directory *Directory
	Vault     *vault.Vault
	Logger    *slog.Logger
}

// Rotate creates the key that is due, removes expired keys, publishes both and returns the current keys.
// Replicas do it once. A key that the vault cannot open has no private part.
func (s *SigningKeys) Rotate(ctx context.Context) ([]signing.Key, error) {
	var keys []signing.Key
	err := postgres.InTx(ctx, s.Directory.DB, func(tx pgx.Tx) error {
		var err error
		if keys, err = s.read(ctx, tx); err != nil {
			return err
		}
		if plan := signing.NewPlan(s.Directory.Now(), keys); !plan.Create && len(plan.Expired) == 0 {
			return nil
		}
		// Another replica may do the same. The lock does not block readers.
		if _, err := tx.Exec(ctx, `lock table token_signing_keys in share row exclusive mode`); err != nil {
			return fmt.Errorf("lock the signing keys: %w", err)
		}
		if keys, err = s.read(ctx, tx); err != nil {
			return err
		}
		keys, err = s.carryOut(ctx, tx, signing.NewPlan(s.Directory.Now(), keys), keys)
		return err
	})
	return keys, err
}

func (s *SigningKeys) carryOut(
	ctx context.Context,
	tx pgx.Tx,
	plan signing.Plan,
	keys []signing.Key,
) ([]signing.Key, error) {
	over := map[string]bool{}
	for _, k := range plan.Expired {
		over[k.ID] = true
		if _, err := tx.Exec(ctx, `delete from token_signing_keys where id = $1`, k.ID); err != nil {
			return nil, fmt.Errorf("remove signing key %s: %w", k.ID, err)
		}
		if err := s.Directory.publish(ctx, tx, k.Entry(true)); err != nil {
			return nil, err
		}
	}
	left := make([]signing.Key, 0, len(keys)+1)
	for _, k := range keys {
		if !over[k.ID] {
			left = append(left, k)
		}
	}
	if !plan.Create {
		return left, nil
	}
	made, err := s.make(ctx, tx)
	if err != nil {
		return nil, err
	}
	return append(left, made), nil
}

func (s *SigningKeys) make(ctx context.Context, tx pgx.Tx) (signing.Key, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return signing.Key{}, fmt.Errorf("make a signing key: %w", err)
	}
	now := s.Directory.Now().UTC().Truncate(time.Second)
	k := signing.Key{
		ID:       uuid.Must(uuid.NewV7()).String(),
		Public:   public,
		Private:  private,
		MadeAt:   now,
		NotAfter: signing.End(now),
	}
	box, err := s.Vault.StoreSigningKey(k.ID, private)
	if err != nil {
		return signing.Key{}, fmt.Errorf("make a signing key: %w", err)
	}
	_, err = tx.Exec(
		ctx,
		`insert into token_signing_keys (id, public_key, box, made_at, not_after) values ($1, $2, $3, $4, $5)`,
		k.ID,
		[]byte(public),
		box,
		k.MadeAt,
		k.NotAfter,
	)
	if err != nil {
		return signing.Key{}, fmt.Errorf("store a signing key: %w", err)
	}
	if err := s.Directory.publish(ctx, tx, k.Entry(false)); err != nil {
		return signing.Key{}, err
	}
	s.Logger.InfoContext(ctx, "created a signing key", slog.String("key_id", k.ID), slog.Time("not_after", k.NotAfter))
	return k, nil
}

func (s *SigningKeys) read(ctx context.Context, tx pgx.Tx) ([]signing.Key, error) {
	rows, err := tx.Query(ctx, `select `+signingKeyColumns+`, box from token_signing_keys order by made_at, id`)
	if err != nil {
		return nil, fmt.Errorf("read the signing keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (signing.Key, error) {
		var k signing.Key
		var box []byte
		if err := row.Scan(&k.ID, (*[]byte)(&k.Public), &k.MadeAt, &k.NotAfter, &box); err != nil {
			return k, err //nolint:wrapcheck // the caller wraps it
		}
		private, err := s.Vault.LoadSigningKey(k.ID, box)
		if err != nil {
			s.Logger.ErrorContext(
				ctx,
				"open a signing key failed; creating another one",
				slog.String("key_id", k.ID),
				slog.Any("error", err),
			)
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

const signingKeyColumns = `id, public_key, made_at, not_after`

// scanSigningKey reads the public part of a key.
func scanSigningKey(row pgx.CollectableRow) (signing.Key, error) {
	var k signing.Key
	err := row.Scan(&k.ID, (*[]byte)(&k.Public), &k.MadeAt, &k.NotAfter)
	return k, err //nolint:wrapcheck // the caller wraps it
}
