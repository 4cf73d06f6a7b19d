package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/directory"
)

const tokenColumns = `id, user_id, name, created_at, expires_at, last_used_at, revoked_at is not null`

func scanToken(row pgx.CollectableRow) (directory.Token, error) {
	var t directory.Token
	var expires, used *time.Time
	err := row.Scan(&t.ID, &t.UserID, &t.Name, &t.CreatedAt, &expires, &used, &t.Revoked)
	if expires != nil {
		t.ExpiresAt = *expires
	}
	if used != nil {
		t.LastUsedAt = *used
	}
	return t, err //nolint:wrapcheck // the caller wraps it
}

// CreateToken stores the hash of a token. A zero ExpiresAt means never.
func (d *Directory) CreateToken(ctx context.Context, t directory.Token, hash []byte) (directory.Token, error) {
	return one(ctx, d, fmt.Sprintf("user %d", t.UserID), scanToken, `
		insert into personal_access_tokens (user_id, name, token_hash, created_at, expires_at)
		values ($1, $2, $3, $4, $5) returning `+tokenColumns, t.UserID, t.Name, hash, d.Now(), nullable(t.ExpiresAt))
}

// Tokens lists a user's tokens.
func (d *Directory) Tokens(ctx context.Context, userID int64) ([]directory.Token, error) {
	return list(
		ctx,
		d,
		"tokens",
		scanToken,
		`select `+tokenColumns+` from personal_access_tokens where user_id = $1 order by id`,
		userID,
	)
}

// Token returns one token.
func (d *Directory) Token(ctx context.Context, id int64) (directory.Token, error) {
	return one(
		ctx,
		d,
		fmt.Sprintf("token %d", id),
		scanToken,
		`select `+tokenColumns+` from personal_access_tokens where id = $1`,
		id,
	)
}

// RevokeToken revokes a token permanently.
func (d *Directory) RevokeToken(ctx context.Context, id int64) error {
	_, err := one(ctx, d, fmt.Sprintf("token %d", id), scanToken, `
		update personal_access_tokens set revoked_at = coalesce(revoked_at, $2) where id = $1
			returning `+tokenColumns, id, d.Now())
	return err
}
