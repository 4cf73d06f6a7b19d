package postgres

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/services/state/vault"
)

// SigningKeys stores the keys that sign access tokens. Private keys are sealed.
type SigningKeys struct {
	Vault  *vault.Vault
	Logger *slog.Logger
}

// Lock blocks other writers of the keys until the transaction ends. It does not block readers.
func (s *SigningKeys) Lock(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `lock table token_signing_keys in share row exclusive mode`); err != nil {
		return fmt.Errorf("lock the signing keys: %w", err)
	}
	return nil
}

// Insert stores a new key.
func (s *SigningKeys) Insert(ctx context.Context, tx pgx.Tx, k signingkey.Key) error {
	box, err := s.Vault.SealSigningKey(k.ID, k.Private)
	if err != nil {
		return fmt.Errorf("seal signing key %s: %w", k.ID, err)
	}
	_, err = tx.Exec(ctx, `
		insert into token_signing_keys (id, public_key, box, made_at, not_after) values ($1, $2, $3, $4, $5)`,
		k.ID, []byte(k.Public), box, k.MadeAt, k.NotAfter)
	if err != nil {
		return fmt.Errorf("store signing key %s: %w", k.ID, err)
	}
	return nil
}

// Delete deletes a key.
func (s *SigningKeys) Delete(ctx context.Context, tx pgx.Tx, id string) error {
	if _, err := tx.Exec(ctx, `delete from token_signing_keys where id = $1`, id); err != nil {
		return fmt.Errorf("delete signing key %s: %w", id, err)
	}
	return nil
}

// Read returns all keys. A key that the vault cannot open has no private part.
func (s *SigningKeys) Read(ctx context.Context, tx pgx.Tx) ([]signingkey.Key, error) {
	rows, err := tx.Query(ctx, `select `+signingKeyColumns+`, box from token_signing_keys order by made_at, id`)
	if err != nil {
		return nil, fmt.Errorf("read the signing keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (signingkey.Key, error) {
		var k signingkey.Key
		var box []byte
		if err := row.Scan(&k.ID, (*[]byte)(&k.Public), &k.MadeAt, &k.NotAfter, &box); err != nil {
			return k, err //nolint:wrapcheck // the caller wraps it
		}
		private, err := s.Vault.OpenSigningKey(k.ID, box)
		if err != nil {
			s.Logger.ErrorContext(
				ctx,
				"decrypting a signing key failed; creating a new key",
				slog.String(logkey.KeyID, k.ID),
				logkey.Error(err),
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
func scanSigningKey(row pgx.CollectableRow) (signingkey.Key, error) {
	var k signingkey.Key
	err := row.Scan(&k.ID, (*[]byte)(&k.Public), &k.MadeAt, &k.NotAfter)
	return k, err //nolint:wrapcheck // the caller wraps it
}
