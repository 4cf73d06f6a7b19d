package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
)

const tokenColumns = `id, user_id, name, scope, coalesce(created_by, 0), created_at, expires_at, last_used_at,
	revoked_at is not null`

func scanToken(row pgx.CollectableRow) (directory.Token, error) {
	var t directory.Token
	var expires, used *time.Time
	err := row.Scan(&t.ID, &t.UserID, &t.Name, &t.Scope, &t.CreatedBy, &t.CreatedAt, &expires, &used, &t.Revoked)
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
// user has limit active tokens; limit 0 means no limit. It returns the fault unauthenticated if the token CreatedBy is
// revoked.
func (d *Directory) CreateToken(
	ctx context.Context, t directory.Token, hash []byte, limit int,
) (directory.Token, error) {
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if err := lockCreator(ctx, tx, t.CreatedBy); err != nil {
			return err
		}
		if err := lockUser(ctx, tx, t.UserID); err != nil {
			return err
		}
		if err := lockMember(ctx, tx, t.UserID); err != nil {
			return err
		}
		if limit > 0 {
			if err := d.checkTokens(ctx, tx, t.UserID, limit); err != nil {
				return err
			}
		}
		var err error
		t, err = one(ctx, d.Within(tx), fmt.Sprintf("user %d", t.UserID), scanToken, `
			insert into personal_access_tokens (user_id, name, scope, created_by, token_hash, created_at, expires_at)
			values ($1, $2, $3, nullif($4::bigint, 0), $5, $6, $7) returning `+tokenColumns,
			t.UserID, t.Name, t.Scope, t.CreatedBy, hash, d.Now(), nullable(t.ExpiresAt))
		return err
	})
	return t, err
}

// lockCreator locks the token that creates another one until the end of the transaction. A concurrent revocation of it
// waits, and revokes both. Token 0 is none. Transactions lock tokens before users.
func lockCreator(ctx context.Context, tx pgx.Tx, id int64) error {
	if id == 0 {
		return nil
	}
	var userID int64
	err := tx.QueryRow(ctx, `
		select user_id from personal_access_tokens where id = $1 and revoked_at is null for share`, id).Scan(&userID)
	if err == nil {
		// A statement of its own: it sees what earlier holders of the lock committed.
		err = tx.QueryRow(ctx, `select id from users where id = $1 and state <> 'blocked'`, userID).Scan(&userID)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fault.New(errcode.Unauthenticated, "your personal access token was revoked: create a new one")
	case err != nil:
		return fmt.Errorf("lock token %d: %w", id, err)
	default:
		return nil
	}
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

// Revocation is the effect of RevokeToken, BlockUser and UnblockUser.
type Revocation struct {
	// Tokens that it revoked, by id.
	Tokens []directory.Token
	// Users of these tokens, and the user that was blocked or unblocked, with their revoked tokens.
	Users []directory.User
}

// Spare is what a revocation does not reach.
type Spare struct {
	// Caller is a token that stays valid, with all that descend from it, unless it is revoked itself. 0 means none.
	Caller int64
	// OtherUsers keeps the tokens of other users, with all that descend from them.
	OtherUsers bool
}

// RevokeToken revokes a token permanently, with all tokens that descend from it: those that it created, those that they
// created, and so on. It changes no token that is revoked already, or has expired.
func (d *Directory) RevokeToken(ctx context.Context, tx pgx.Tx, t directory.Token, spare Spare) (Revocation, error) {
	tokens, err := lockDescendants(ctx, tx, t.UserID, []int64{t.ID}, spare, d.Now())
	if err != nil {
		return Revocation{}, err
	}
	revoked, err := d.revoke(ctx, tx, tokens, 0)
	if err != nil {
		return Revocation{}, err
	}
	users := owners(revoked)
	if err := lockUsers(ctx, tx, users); err != nil {
		return Revocation{}, err
	}
	return d.revocation(ctx, tx, revoked, users)
}

// BlockUser blocks the user: all later requests are denied. It also revokes the tokens of other users that descend from
// the user's tokens.
func (d *Directory) BlockUser(ctx context.Context, tx pgx.Tx, id int64, spare Spare) (Revocation, error) {
	tokens, err := list(ctx, d.Within(tx), "tokens", pgx.RowTo[int64],
		`select id from personal_access_tokens where user_id = $1`, id)
	if err != nil {
		return Revocation{}, err
	}
	// Locks all, so that no creation is missed. The user's own tokens need no revocation.
	descendants, err := lockDescendants(ctx, tx, id, tokens, spare, d.Now())
	if err != nil {
		return Revocation{}, err
	}
	revoked, err := d.revoke(ctx, tx, descendants, id)
	if err != nil {
		return Revocation{}, err
	}
	users := append(owners(revoked), id)
	slices.Sort(users)
	users = slices.Compact(users)
	if err := lockUsers(ctx, tx, users); err != nil {
		return Revocation{}, err
	}
	tag, err := tx.Exec(ctx, `update users set state = 'blocked' where id = $1`, id)
	switch {
	case err != nil:
		return Revocation{}, fmt.Errorf("block user %d: %w", id, err)
	case tag.RowsAffected() == 0:
		return Revocation{}, fault.New(errcode.NotFound, "user %d does not exist", id)
	}
	return d.revocation(ctx, tx, revoked, users)
}

// UnblockUser ends the block of a user, and revokes the tokens that the user has from before.
func (d *Directory) UnblockUser(ctx context.Context, tx pgx.Tx, id int64) (Revocation, error) {
	tokens, err := list(ctx, d.Within(tx), "tokens", pgx.RowTo[int64],
		`select id from personal_access_tokens where user_id = $1 order by id for update`, id)
	if err != nil {
		return Revocation{}, err
	}
	revoked, err := d.revoke(ctx, tx, tokens, 0)
	if err != nil {
		return Revocation{}, err
	}
	if err := lockUsers(ctx, tx, []int64{id}); err != nil {
		return Revocation{}, err
	}
	tag, err := tx.Exec(ctx, `update users set state = 'active' where id = $1 and state = 'blocked'`, id)
	switch {
	case err != nil:
		return Revocation{}, fmt.Errorf("unblock user %d: %w", id, err)
	case tag.RowsAffected() == 0:
		return Revocation{}, fault.New(errcode.FailedPrecondition, "user %d does not exist or is not blocked", id)
	}
	return d.revocation(ctx, tx, revoked, []int64{id})
}

// revoke revokes tokens, but those of one user.
func (d *Directory) revoke(ctx context.Context, tx pgx.Tx, tokens []int64, but int64) ([]directory.Token, error) {
	revoked, err := list(ctx, d.Within(tx), "revoked tokens", scanToken, `
		update personal_access_tokens set revoked_at = $2
		where id = any($1) and user_id <> $3 and revoked_at is null and (expires_at is null or expires_at > $2)
		returning `+tokenColumns, tokens, d.Now(), but)
	slices.SortFunc(revoked, func(a, b directory.Token) int { return cmp.Compare(a.ID, b.ID) })
	return revoked, err
}

// lockDescendants locks tokens and all that descend from them, without what is spared. An expired token is left out:
// what it created has expired, too.
func lockDescendants(
	ctx context.Context, tx pgx.Tx, userID int64, tokens []int64, spare Spare, now time.Time,
) ([]int64, error) {
	var locked []int64
	for {
		// A creation that holds the lock of its creator ends before this statement does. The next statement sees the
		// token that it created. Once all are locked, none of them can create another one.
		rows, err := tx.Query(ctx, `
			select id from personal_access_tokens where id = any(array(
				with recursive tree as (
					select unnest($1::bigint[]) as id
					union
					select t.id from personal_access_tokens t join tree on t.created_by = tree.id
					where t.id <> $2 and (t.expires_at is null or t.expires_at > $3) and (t.user_id = $4 or not $5)
				)
				select id from tree))
			order by id for no key update`, tokens, spare.Caller, now, userID, spare.OtherUsers)
		if err != nil {
			return nil, fmt.Errorf("lock the descendants of tokens %d: %w", tokens, err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return nil, fmt.Errorf("lock the descendants of tokens %d: %w", tokens, err)
		}
		if len(found) == len(locked) {
			return locked, nil
		}
		locked = found
	}
}

// owners returns the users of tokens, each once, by id.
func owners(tokens []directory.Token) []int64 {
	users := make([]int64, len(tokens))
	for i := range tokens {
		users[i] = tokens[i].UserID
	}
	slices.Sort(users)
	return slices.Compact(users)
}

// lockUsers locks users in the order of their ids, and notifies of their changed access.
func lockUsers(ctx context.Context, tx pgx.Tx, ids []int64) error {
	_, err := tx.Exec(ctx, `
		select pg_notify($1, u.id::text) from (select id from users where id = any($2) order by id for update) as u`,
		AccessChannel, ids)
	if err != nil {
		return fmt.Errorf("lock the users of revoked tokens: %w", err)
	}
	return nil
}

// revocation reads the users, which are locked, with their revoked tokens. Its statement sees what earlier holders of
// the locks committed.
func (d *Directory) revocation(
	ctx context.Context, tx pgx.Tx, revoked []directory.Token, ids []int64,
) (Revocation, error) {
	query := `select ` + userEntryColumns + ` from users where id = any($2) order by id`
	users, err := list(ctx, d.Within(tx), "users of revoked tokens", scanUserEntry, query, d.revokedSince(), ids)
	return Revocation{Tokens: revoked, Users: users}, err
}
