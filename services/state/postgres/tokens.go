package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
)

const tokenColumns = `id, user_id, name, scope, created_at, expires_at, last_used_at, revoked_at is not null`

func scanToken(row pgx.CollectableRow) (directory.Token, error) {
	var t directory.Token
	var expires, used *time.Time
	err := row.Scan(&t.ID, &t.UserID, &t.Name, &t.Scope, &t.CreatedAt, &expires, &used, &t.Revoked)
	if expires != nil {
		t.ExpiresAt = *expires
	}
	if used != nil {
		t.LastUsedAt = *used
	}
	return t, err //nolint:wrapcheck // the caller wraps it
}

// maxUserTokens is the maximum number of a user's tokens that are active or were revoked within
// [access.RevocationPeriod]. It bounds the user's entry.
const maxUserTokens = 1000

// CreateToken stores the hash of a token. A zero ExpiresAt means never. It returns the fault resource_exhausted if the
// user has limit active tokens; limit 0 means no limit.
func (d *Directory) CreateToken(
	ctx context.Context, t directory.Token, hash []byte, limit int,
) (directory.Token, error) {
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if err := lockUser(ctx, tx, t.UserID); err != nil {
			return err
		}
		if limit > 0 {
			if err := d.checkTokens(ctx, tx, t.UserID, limit); err != nil {
				return err
			}
		}
		var err error
		t, err = one(ctx, d.Within(tx), fmt.Sprintf("user %d", t.UserID), scanToken, `
			insert into personal_access_tokens (user_id, name, scope, token_hash, created_at, expires_at)
			values ($1, $2, $3, $4, $5, $6) returning `+tokenColumns,
			t.UserID, t.Name, t.Scope, hash, d.Now(), nullable(t.ExpiresAt))
		return err
	})
	return t, err
}

// checkTokens returns the fault resource_exhausted if the user may have no further token.
func (d *Directory) checkTokens(ctx context.Context, tx pgx.Tx, userID int64, limit int) error {
	var active, revoked int
	err := tx.QueryRow(ctx, `
		select count(*) filter (where revoked_at is null and (expires_at is null or expires_at > $2)),
			count(*) filter (where revoked_at > $3)
		from personal_access_tokens where user_id = $1`, userID, d.Now(), d.revokedSince()).Scan(&active, &revoked)
	switch {
	case err != nil:
		return fmt.Errorf("count the tokens of user %d: %w", userID, err)
	case active >= limit:
		return fault.New(errcode.ResourceExhausted,
			"user %d has %d active tokens, the maximum: revoke one that is not needed (lockstep token list, token revoke)",
			userID, active)
	case active+revoked >= maxUserTokens:
		return fault.New(errcode.ResourceExhausted,
			"user %d has revoked %d tokens within %s: create fewer, with an expiry instead of a revocation, or wait",
			userID, revoked, access.RevocationPeriod)
	default:
		return nil
	}
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

// RevokeToken revokes a token permanently. It returns the user with its revoked tokens.
func (d *Directory) RevokeToken(ctx context.Context, tx pgx.Tx, t directory.Token) (directory.User, error) {
	if err := lockUser(ctx, tx, t.UserID); err != nil {
		return directory.User{}, err
	}
	_, err := one(ctx, d.Within(tx), fmt.Sprintf("token %d", t.ID), scanToken, `
		update personal_access_tokens set revoked_at = coalesce(revoked_at, $2) where id = $1
			returning `+tokenColumns, t.ID, d.Now())
	if err != nil {
		return directory.User{}, err
	}
	if err := notifyAccess(ctx, tx, t.UserID); err != nil {
		return directory.User{}, err
	}
	return d.userEntry(ctx, tx, t.UserID)
}
