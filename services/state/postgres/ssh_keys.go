package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
)

const (
	// maxSSHKeys is the maximum number of a user's SSH keys.
	maxSSHKeys = 50
	// maxStoredSSHKeys also counts the removed ones that are stored.
	maxStoredSSHKeys = 500
	// removedSSHKeyPeriod is how long a removed key is stored and its removal is published again after a restore.
	removedSSHKeyPeriod = 30 * 24 * time.Hour
)

const sshKeyColumns = `fingerprint, user_id, name, public_key, created_at, expires_at, removed_at is not null`

func scanSSHKey(row pgx.CollectableRow) (directory.SSHKey, error) {
	var k directory.SSHKey
	var fingerprint []byte
	var expires *time.Time
	err := row.Scan(&fingerprint, &k.UserID, &k.Name, &k.PublicKey, &k.CreatedAt, &expires, &k.Removed)
	copy(k.Fingerprint[:], fingerprint)
	k.CreatedAt, k.ExpiresAt = k.CreatedAt.UTC(), fromNullable(expires).UTC()
	return k, err //nolint:wrapcheck // the caller wraps it
}

// AddSSHKey stores a key. It returns the fault already_exists if the key is registered already, by anybody, or if the
// user has another key with the name, and resource_exhausted if the user has too many.
func (d *Directory) AddSSHKey(ctx context.Context, tx pgx.Tx, k directory.SSHKey) (directory.SSHKey, error) {
	if err := lockUser(ctx, tx, k.UserID); err != nil {
		return k, err
	}
	now := d.Now()
	_, err := tx.Exec(ctx, `delete from ssh_keys where user_id = $1 and removed_at < $2`,
		k.UserID, now.Add(-removedSSHKeyPeriod))
	if err != nil {
		return k, fmt.Errorf("forget removed SSH keys of user %d: %w", k.UserID, err)
	}
	var active, stored int
	err = tx.QueryRow(ctx, `select count(*) filter (where removed_at is null), count(*) from ssh_keys where user_id = $1`,
		k.UserID).Scan(&active, &stored)
	switch {
	case err != nil:
		return k, fmt.Errorf("count the SSH keys of user %d: %w", k.UserID, err)
	case active >= maxSSHKeys:
		return k, fault.New(errcode.ResourceExhausted,
			"user %d has %d SSH keys, the maximum: remove one that is not needed (lockstep ssh-key list, ssh-key remove)",
			k.UserID, active)
	case stored >= maxStoredSSHKeys:
		return k, fault.New(errcode.ResourceExhausted,
			"user %d has removed too many SSH keys within 30 days: wait, or add a key that was removed", k.UserID)
	}
	added, err := one(ctx, d.Within(tx), "SSH key", scanSSHKey, `
		insert into ssh_keys as k (fingerprint, user_id, name, public_key, created_at, expires_at)
		values ($1, $2, $3, $4, $5, $6)
		on conflict (fingerprint) do update set user_id = excluded.user_id, name = excluded.name,
			created_at = excluded.created_at, expires_at = excluded.expires_at, removed_at = null
			where k.removed_at is not null
		returning `+sshKeyColumns, k.Fingerprint[:], k.UserID, k.Name, k.PublicKey, now, nullable(k.ExpiresAt))
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.ConstraintName == "ssh_keys_name":
		return k, fault.Wrap(err, errcode.AlreadyExists, "you have an SSH key with the name %q: choose another name", k.Name).
			With("field", "name")
	case fault.Is(err, errcode.NotFound):
		return k, fault.Wrap(err, errcode.AlreadyExists,
			"the SSH key %s is registered already: a key belongs to one person", k.Fingerprint)
	default:
		return added, err
	}
}

// RemoveSSHKey removes the key of a user with this name or fingerprint. It returns the fault not_found if there is
// none.
func (d *Directory) RemoveSSHKey(
	ctx context.Context, tx pgx.Tx, userID int64, nameOrFingerprint string,
) (directory.SSHKey, error) {
	if err := lockUser(ctx, tx, userID); err != nil {
		return directory.SSHKey{}, err
	}
	keys, err := d.Within(tx).SSHKeys(ctx, userID)
	if err != nil {
		return directory.SSHKey{}, err
	}
	for _, k := range keys {
		if k.Name != nameOrFingerprint && k.Fingerprint.String() != nameOrFingerprint {
			continue
		}
		k.Removed = true
		_, err := tx.Exec(ctx, `update ssh_keys set removed_at = $2 where fingerprint = $1`, k.Fingerprint[:], d.Now())
		if err != nil {
			return k, fmt.Errorf("remove SSH key %s: %w", k.Fingerprint, err)
		}
		return k, nil
	}
	return directory.SSHKey{}, fault.New(errcode.NotFound,
		"SSH key %.100q does not exist: give the name or the fingerprint of a key (lockstep ssh-key list)", nameOrFingerprint)
}

// SSHKeys lists the keys of a user, oldest first, without removed ones.
func (d *Directory) SSHKeys(ctx context.Context, userID int64) ([]directory.SSHKey, error) {
	query := `select ` + sshKeyColumns + `
		from ssh_keys where user_id = $1 and removed_at is null order by created_at, name`
	return list(ctx, d, "SSH keys", scanSSHKey, query, userID)
}

// LockSSHKeys locks all keys, with those that were removed, and returns them.
func (d *Directory) LockSSHKeys(ctx context.Context, tx pgx.Tx) ([]directory.SSHKey, error) {
	query := `select ` + sshKeyColumns + ` from ssh_keys order by fingerprint for no key update`
	return collect(ctx, tx, query, scanSSHKey, func(k directory.SSHKey) directory.SSHKey { return k })
}
