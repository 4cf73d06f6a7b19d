package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
)

// Directory reads and changes the directory. Its methods that change it publish the change. Errors for the API's
// callers are faults.
type Directory struct {
	*postgres.Directory

	Encoder publish.Encoder
}

// Within returns the directory within a transaction, which needs no second connection.
func (d *Directory) Within(tx pgx.Tx) *Directory {
	return &Directory{Directory: d.Directory.Within(tx), Encoder: d.Encoder}
}

// change stores a change of the directory and publishes its entries, in one transaction.
func (d *Directory) change(ctx context.Context, store func(tx pgx.Tx) ([]directory.Entry, error)) error {
	return libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		entries, err := store(tx)
		if err != nil {
			return err
		}
		return d.publish(ctx, tx, entries...)
	})
}

// publish puts entries into the outbox.
func (d *Directory) publish(ctx context.Context, tx pgx.Tx, entries ...directory.Entry) error {
	messages, err := d.Encoder.Entries(ctx, d.Now(), entries...)
	if err != nil {
		return err
	}
	if err := outbox.Insert(ctx, tx, messages...); err != nil {
		return fmt.Errorf("publish %d entries: %w", len(entries), err)
	}
	return nil
}

// CreateOrganization creates an organization. It returns the fault already_exists if the name is in use.
func (d *Directory) CreateOrganization(ctx context.Context, name string) (directory.Organization, error) {
	o := directory.Organization{Name: name}
	err := d.change(ctx, func(tx pgx.Tx) (_ []directory.Entry, err error) {
		o, err = d.Directory.CreateOrganization(ctx, tx, o)
		return []directory.Entry{o.Entry()}, err
	})
	return o, err
}

// CreateGroup creates a group in an organization or in another group.
func (d *Directory) CreateGroup(ctx context.Context, g directory.Group) (directory.Group, error) {
	err := d.change(ctx, func(tx pgx.Tx) (_ []directory.Entry, err error) {
		g, err = d.Directory.CreateGroup(ctx, tx, g)
		return []directory.Entry{g.Entry()}, err
	})
	return g, err
}

// CreateProject creates a project in a group.
func (d *Directory) CreateProject(ctx context.Context, groupID int64, name string) (directory.Project, error) {
	var p directory.Project
	err := d.change(ctx, func(tx pgx.Tx) (_ []directory.Entry, err error) {
		p, err = d.Directory.CreateProject(ctx, tx, groupID, name)
		return []directory.Entry{p.Entry()}, err
	})
	return p, err
}

// CreateUser creates a user. It returns the fault already_exists if the name is in use.
func (d *Directory) CreateUser(ctx context.Context, username string, admin bool) (directory.User, error) {
	u := directory.User{Username: username, Admin: admin}
	err := d.change(ctx, func(tx pgx.Tx) (_ []directory.Entry, err error) {
		u, err = d.Directory.CreateUser(ctx, tx, u)
		return []directory.Entry{u.Entry()}, err
	})
	return u, err
}

// BlockUser blocks the user: all later requests are denied. It also revokes the tokens of other users that descend from
// the user's, but those that are spared. It returns the user and the tokens that it revoked.
func (d *Directory) BlockUser(
	ctx context.Context, id int64, spare postgres.Spare,
) (directory.User, []directory.Token, error) {
	revoked, err := d.revoke(ctx, func(tx pgx.Tx) (postgres.Revocation, error) {
		return d.Directory.BlockUser(ctx, tx, id, spare)
	})
	if err != nil {
		return directory.User{}, nil, err
	}
	at := slices.IndexFunc(revoked.Users, func(u directory.User) bool { return u.ID == id })
	return revoked.Users[at], revoked.Tokens, nil
}

// UnblockUser ends the block of a user, and revokes the tokens that the user has from before. It returns the user and
// these tokens.
func (d *Directory) UnblockUser(ctx context.Context, id int64) (directory.User, []directory.Token, error) {
	revoked, err := d.revoke(ctx, func(tx pgx.Tx) (postgres.Revocation, error) {
		return d.Directory.UnblockUser(ctx, tx, id)
	})
	if err != nil {
		return directory.User{}, nil, err
	}
	return revoked.Users[0], revoked.Tokens, nil
}

// RevokeToken revokes a token permanently, with all tokens that descend from it but those that are spared. It returns
// the tokens that it revoked.
func (d *Directory) RevokeToken(
	ctx context.Context, t directory.Token, spare postgres.Spare,
) ([]directory.Token, error) {
	revoked, err := d.revoke(ctx, func(tx pgx.Tx) (postgres.Revocation, error) {
		return d.Directory.RevokeToken(ctx, tx, t, spare)
	})
	return revoked.Tokens, err
}

func (d *Directory) revoke(
	ctx context.Context, do func(tx pgx.Tx) (postgres.Revocation, error),
) (revoked postgres.Revocation, err error) {
	err = d.change(ctx, func(tx pgx.Tx) (entries []directory.Entry, err error) {
		revoked, err = do(tx)
		for _, u := range revoked.Users {
			entries = append(entries, u.Entry())
		}
		return entries, err
	})
	return revoked, err
}

// PutMembership sets the user's role in a scope.
func (d *Directory) PutMembership(ctx context.Context, m directory.Membership) error {
	return d.change(ctx, func(tx pgx.Tx) ([]directory.Entry, error) {
		return []directory.Entry{m.Entry(false)}, d.Directory.PutMembership(ctx, tx, m)
	})
}

// DeleteMembership removes the user's role in a scope, and ends the shares of workspaces in whose projects the user has
// no role any more. It returns the fault not_found if there is none.
func (d *Directory) DeleteMembership(ctx context.Context, userID int64, scope directory.Scope) error {
	return d.change(ctx, func(tx pgx.Tx) ([]directory.Entry, error) {
		m, err := d.Directory.DeleteMembership(ctx, tx, userID, scope)
		if err != nil {
			return nil, err
		}
		return []directory.Entry{m.Entry(true)}, d.endShares(ctx, tx, userID)
	})
}

// UpgradeAgentEntries publishes the entries of agents again that an earlier version of the service published
// with fewer fields.
func (d *Directory) UpgradeAgentEntries(ctx context.Context) error {
	return d.change(ctx, func(tx pgx.Tx) ([]directory.Entry, error) {
		old, err := d.Directory.UpgradeAgentEntries(ctx, tx)
		entries := make([]directory.Entry, len(old))
		for i := range old {
			entries[i] = old[i].Entry()
		}
		return entries, err
	})
}

// UpgradeUserEntries publishes the entries of users again that an earlier version of the service published with fewer
// fields.
func (d *Directory) UpgradeUserEntries(ctx context.Context) error {
	return d.change(ctx, func(tx pgx.Tx) ([]directory.Entry, error) {
		old, err := d.Directory.UpgradeUserEntries(ctx, tx)
		entries := make([]directory.Entry, len(old))
		for i := range old {
			entries[i] = old[i].Entry()
		}
		return entries, err
	})
}

// RepublishAll publishes every directory entry, SSH key and agent configuration again, after a stream was restored from
// an older backup. Consumers use the latest entry of each key, so duplicates have no effect.
func (d *Directory) RepublishAll(ctx context.Context, tx pgx.Tx) error {
	entries, err := d.LockEntries(ctx, tx)
	if err != nil {
		return err
	}
	if err := d.publish(ctx, tx, entries...); err != nil {
		return err
	}
	keys, err := d.LockSSHKeys(ctx, tx)
	if err != nil {
		return err
	}
	if err := d.publishSSHKeys(ctx, tx, keys...); err != nil {
		return err
	}
	agents, err := d.LockActiveAgents(ctx, tx)
	if err != nil {
		return err
	}
	return d.publishConfigurations(ctx, tx, agents...)
}
