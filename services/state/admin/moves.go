package admin

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/idrange"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/postgres"
)

// CheckMove returns what an organization has that cannot move.
func (d *Directory) CheckMove(ctx context.Context, organizationID int64) (contents move.Contents, err error) {
	err = libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		o, err := d.LockOrganization(ctx, tx, organizationID)
		if err != nil {
			return err
		}
		contents, err = d.ContentsOf(ctx, tx, o.ID)
		return err
	})
	return contents, err
}

// BeginMove begins to move an organization to another cell. From its commit on, the organization cannot be changed. It
// returns the move, also if it has begun before.
func (d *Directory) BeginMove(ctx context.Context, m move.Move) (move.Move, error) {
	m.BegunAt = d.Now()
	err := libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		known, begins, err := d.ClaimMove(ctx, tx, m)
		if err != nil {
			return err
		}
		if err := m.Repeats(known); err != nil {
			return err
		}
		if m = known; !begins {
			return nil
		}
		o, err := d.LockOrganization(ctx, tx, m.OrganizationID)
		if err != nil {
			return err
		}
		contents, err := d.ContentsOf(ctx, tx, o.ID)
		if err != nil {
			return err
		}
		if o, err = move.Begin(o, m.OtherCell, contents); err != nil {
			return err
		}
		return d.SaveResidence(ctx, tx, o)
	})
	return m, err
}

// ExportOrganization returns the content of an organization whose move from this cell goes on.
func (d *Directory) ExportOrganization(
	ctx context.Context, organizationID int64, moveID string,
) (content move.Content, err error) {
	err = libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		m, err := d.LockMove(ctx, tx, moveID) // the move does not end meanwhile
		if err != nil {
			return err
		}
		if err := m.Exportable(organizationID); err != nil {
			return err
		}
		o, err := d.LockOrganization(ctx, tx, organizationID)
		if err != nil {
			return err
		}
		if content, err = d.Export(ctx, tx, o); err != nil {
			return err
		}
		return content.CheckSize()
	})
	return content, err
}

// ImportOrganization stores and publishes the content of an organization that another cell has exported, to this cell
// with a range of ids. It returns the move, also if it was imported before.
func (d *Directory) ImportOrganization(
	ctx context.Context, m move.Move, content move.Content, ids idrange.Range,
) (move.Move, error) {
	m.BegunAt = d.Now()
	err := libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		known, begins, err := d.ClaimMove(ctx, tx, m)
		if err != nil {
			return err
		}
		if err := m.Repeats(known); err != nil {
			return err
		}
		if m = known; !begins {
			return nil
		}
		existing, err := d.LockExisting(ctx, tx, content, ids)
		if err != nil {
			return err
		}
		plan, err := move.NewPlan(content, m, existing)
		if err != nil {
			return err
		}
		revoked, err := d.Import(ctx, tx, plan)
		if err != nil {
			return err
		}
		m.Imported = plan.Imported
		if err := d.SaveMove(ctx, tx, m); err != nil {
			return err
		}
		return d.publishImport(ctx, tx, plan, revoked.Users)
	})
	return m, err
}

// publishImport publishes what an import created and ended, and the users with revoked tokens.
func (d *Directory) publishImport(
	ctx context.Context, tx pgx.Tx, p move.Plan, revoked []directory.User,
) error {
	var entries []directory.Entry
	if p.Create {
		entries = append(entries, p.Organization.Entry())
	}
	for _, g := range p.Groups {
		entries = append(entries, g.Entry())
	}
	for _, project := range p.Projects {
		entries = append(entries, project.Entry())
	}
	for _, u := range slices.Concat(p.Users, revoked) {
		entries = append(entries, u.Entry())
	}
	for _, m := range p.Memberships {
		entries = append(entries, m.Entry(false))
	}
	for _, m := range p.Ended {
		entries = append(entries, m.Entry(true))
	}
	return d.publishMany(ctx, tx, entries)
}

// EndMove ends a move, and publishes what that changes. At the source of an organization that has moved, it returns
// what changed the access of its members since the begin of the move; at the target it applies that.
func (d *Directory) EndMove(
	ctx context.Context, organizationID int64, moveID string, outcome move.Outcome, changes move.AccessChanges,
) (m move.Move, since move.AccessChanges, err error) {
	err = libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		known, err := d.lockEnding(ctx, tx, organizationID, moveID, outcome)
		if err != nil {
			return err
		}
		var ends bool
		if m, ends, err = known.End(organizationID, outcome, d.Now()); err != nil {
			return err
		}
		switch {
		case m.Direction == move.DirectionOut && outcome == move.OutcomeMoved:
			if since, err = d.LockAccessChanges(ctx, tx, m); err != nil || !ends {
				return err
			}
			return d.settle(ctx, tx, m)
		case !ends:
			return nil
		case m.Direction == move.DirectionIn && outcome == move.OutcomeMoved:
			return d.activate(ctx, tx, m, m.Accept(changes))
		case m.Direction == move.DirectionIn:
			return d.removeImport(ctx, tx, m)
		case m.Direction == move.DirectionOut:
			return d.settle(ctx, tx, m)
		default:
			return d.SaveMove(ctx, tx, m)
		}
	})
	return m, since, err
}

// lockEnding locks the move. One that this cell does not know is stored if it is canceled, so that it cannot begin
// later.
func (d *Directory) lockEnding(
	ctx context.Context, tx pgx.Tx, organizationID int64, moveID string, outcome move.Outcome,
) (move.Move, error) {
	if outcome != move.OutcomeCanceled {
		return d.LockMove(ctx, tx, moveID)
	}
	m, _, err := d.ClaimMove(ctx, tx, move.Move{ID: moveID, OrganizationID: organizationID, BegunAt: d.Now()})
	return m, err
}

// settle stores the end of a move, and where the organization is then.
func (d *Directory) settle(ctx context.Context, tx pgx.Tx, m move.Move) error {
	o, err := d.LockOrganization(ctx, tx, m.OrganizationID)
	if err != nil {
		return err
	}
	if err := d.SaveResidence(ctx, tx, m.Settle(o)); err != nil {
		return err
	}
	return d.SaveMove(ctx, tx, m.Compact())
}

// activate ends the import of an organization that has moved.
func (d *Directory) activate(ctx context.Context, tx pgx.Tx, m move.Move, changes move.AccessChanges) error {
	revoked, err := d.RevokeTokens(ctx, tx, changes.RevokedTokens)
	if err != nil {
		return err
	}
	users := revoked.Users
	for _, id := range changes.BlockedUsers {
		blocked, err := d.Directory.BlockUser(ctx, tx, id, postgres.Spare{})
		if err != nil {
			return err
		}
		users = append(users, blocked.Users...) // the last entry of a user is valid
	}
	if err := d.settle(ctx, tx, m); err != nil {
		return err
	}
	entries := make([]directory.Entry, len(users))
	for i := range users {
		entries[i] = users[i].Entry()
	}
	return d.publishMany(ctx, tx, entries)
}

// removeImport ends an import that was canceled.
func (d *Directory) removeImport(ctx context.Context, tx pgx.Tx, m move.Move) error {
	if err := d.LockImported(ctx, tx, m.Imported); err != nil {
		return err
	}
	if err := d.settle(ctx, tx, m); err != nil {
		return err
	}
	removed, err := d.RemoveImported(ctx, tx, m)
	if err != nil {
		return err
	}
	if err := d.SaveMove(ctx, tx, m.Compact(), removed...); err != nil {
		return err
	}
	return d.publishMany(ctx, tx, removed)
}

// published is how many entries are encoded at once.
const published = 1000

func (d *Directory) publishMany(ctx context.Context, tx pgx.Tx, entries []directory.Entry) error {
	for some := range slices.Chunk(entries, published) {
		if err := d.publish(ctx, tx, some...); err != nil {
			return err
		}
	}
	return nil
}
