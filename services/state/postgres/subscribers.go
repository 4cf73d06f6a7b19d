package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/directory"
)

const subscriberColumns = `id, name, filter, from_beginning, user_id, created_at, revoked_at is not null`

func scanSubscriber(row pgx.CollectableRow) (directory.Subscriber, error) {
	var s directory.Subscriber
	err := row.Scan(&s.ID, &s.Name, &s.Filter, &s.FromBeginning, &s.UserID, &s.CreatedAt, &s.Revoked)
	return s, err //nolint:wrapcheck // the caller wraps it
}

// CreateSubscriber creates a subscriber with the hash of its token. It returns the fault already_exists if the name is
// in use.
func (d *Directory) CreateSubscriber(
	ctx context.Context,
	s directory.Subscriber,
	hash []byte,
) (directory.Subscriber, error) {
	var created directory.Subscriber
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			insert into subscribers (name, filter, from_beginning, token_hash, user_id, created_at)
				values ($1, $2, $3, $4, $5, $6) returning `+subscriberColumns,
			s.Name, s.Filter, s.FromBeginning, hash, s.UserID, d.Now().UTC().Truncate(time.Millisecond))
		if err != nil {
			return fmt.Errorf("create subscriber %q: %w", s.Name, err)
		}
		created, err = pgx.CollectExactlyOneRow(rows, scanSubscriber)
		return asFault(err, fmt.Sprintf("subscriber %q", s.Name), fmt.Sprintf("user %d", s.UserID))
	})
	return created, err
}

// Subscriber returns one subscriber.
func (d *Directory) Subscriber(ctx context.Context, id int64) (directory.Subscriber, error) {
	return one(
		ctx,
		d,
		fmt.Sprintf("subscriber %d", id),
		scanSubscriber,
		`select `+subscriberColumns+` from subscribers where id = $1`,
		id,
	)
}

// SubscriberByToken returns the subscriber with a name and token hash. It returns the fault
// not_found if the subscriber is unknown or revoked.
func (d *Directory) SubscriberByToken(ctx context.Context, name string, hash []byte) (directory.Subscriber, error) {
	return one(
		ctx,
		d,
		"subscriber",
		scanSubscriber,
		`select `+subscriberColumns+` from subscribers where name = $1 and token_hash = $2 and revoked_at is null`,
		name,
		hash,
	)
}

// Subscribers lists subscribers, including revoked ones.
func (d *Directory) Subscribers(ctx context.Context, page Page) ([]directory.Subscriber, error) {
	return list(
		ctx,
		d,
		"subscribers",
		scanSubscriber,
		`select `+subscriberColumns+` from subscribers where id > $1 order by id limit $2`,
		page.After,
		page.Size,
	)
}

// RevokeSubscriber revokes a subscriber's credentials permanently.
func (d *Directory) RevokeSubscriber(ctx context.Context, id int64) (directory.Subscriber, error) {
	return one(
		ctx,
		d,
		fmt.Sprintf("subscriber %d", id),
		scanSubscriber,
		`update subscribers set revoked_at = coalesce(revoked_at, $2) where id = $1 returning `+subscriberColumns,
		id,
		d.Now(),
	)
}
