package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/directory"
)

// AddSSHKey stores a key. Faults: see [postgres.Directory.AddSSHKey].
func (d *Directory) AddSSHKey(ctx context.Context, k directory.SSHKey) (directory.SSHKey, error) {
	return d.changeSSHKey(ctx, func(tx pgx.Tx) (directory.SSHKey, error) { return d.Directory.AddSSHKey(ctx, tx, k) })
}

// RemoveSSHKey removes the key of a user with this name or fingerprint. It returns the fault not_found if there is
// none.
func (d *Directory) RemoveSSHKey(
	ctx context.Context, userID int64, nameOrFingerprint string,
) (directory.SSHKey, error) {
	return d.changeSSHKey(ctx, func(tx pgx.Tx) (directory.SSHKey, error) {
		return d.Directory.RemoveSSHKey(ctx, tx, userID, nameOrFingerprint)
	})
}

func (d *Directory) changeSSHKey(
	ctx context.Context, store func(tx pgx.Tx) (directory.SSHKey, error),
) (k directory.SSHKey, err error) {
	err = libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if k, err = store(tx); err != nil {
			return err
		}
		return d.publishSSHKeys(ctx, tx, k)
	})
	return k, err
}

// publishSSHKeys puts the messages of keys into the outbox.
func (d *Directory) publishSSHKeys(ctx context.Context, tx pgx.Tx, keys ...directory.SSHKey) error {
	for _, k := range keys {
		m, err := d.Encoder.SSHKey(ctx, k, d.Now())
		if err != nil {
			return err
		}
		if err := outbox.Insert(ctx, tx, m); err != nil {
			return fmt.Errorf("publish SSH key %s: %w", k.Fingerprint, err)
		}
	}
	return nil
}
