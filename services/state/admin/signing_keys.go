package admin

import (
	"context"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/signing"
)

// SigningKeys rotates the keys that sign access tokens. It implements signing.Store.
type SigningKeys struct {
	Directory *Directory
	Keys      *postgres.SigningKeys
	Logger    *slog.Logger
}

// Rotate creates a new key if one is due, deletes expired keys, publishes both and returns the current keys. Only
// one replica makes each change. A key that the vault cannot open has no private part.
func (s *SigningKeys) Rotate(ctx context.Context) ([]signingkey.Key, error) {
	var keys []signingkey.Key
	err := libpostgres.InTx(ctx, s.Directory.DB, func(tx pgx.Tx) error {
		var err error
		if keys, err = s.Keys.Read(ctx, tx); err != nil {
			return err
		}
		if signing.Schedule.Plan(s.Directory.Now(), keys).Empty() {
			return nil
		}
		// Another replica may do the same, so read again under the lock.
		if err := s.Keys.Lock(ctx, tx); err != nil {
			return err
		}
		if keys, err = s.Keys.Read(ctx, tx); err != nil {
			return err
		}
		keys, err = s.apply(ctx, tx, signing.Schedule.Plan(s.Directory.Now(), keys), keys)
		return err
	})
	return keys, err
}

// apply returns the keys after the plan.
func (s *SigningKeys) apply(
	ctx context.Context, tx pgx.Tx, plan signingkey.Plan, keys []signingkey.Key,
) ([]signingkey.Key, error) {
	for _, expired := range plan.Expired {
		if err := s.Keys.Delete(ctx, tx, expired.ID); err != nil {
			return nil, err
		}
		if err := s.Directory.publish(ctx, tx, signing.Entry(expired, true)); err != nil {
			return nil, err
		}
		keys = slices.DeleteFunc(keys, func(k signingkey.Key) bool { return k.ID == expired.ID })
	}
	if !plan.Create {
		return keys, nil
	}
	created, err := s.create(ctx, tx)
	if err != nil {
		return nil, err
	}
	return append(keys, created), nil
}

func (s *SigningKeys) create(ctx context.Context, tx pgx.Tx) (signingkey.Key, error) {
	k, err := signing.Schedule.New(s.Directory.Now())
	if err != nil {
		return signingkey.Key{}, err
	}
	if err := s.Keys.Insert(ctx, tx, k); err != nil {
		return signingkey.Key{}, err
	}
	if err := s.Directory.publish(ctx, tx, signing.Entry(k, false)); err != nil {
		return signingkey.Key{}, err
	}
	s.Logger.InfoContext(ctx, "created a signing key",
		slog.String(logkey.KeyID, k.ID), slog.Time(logkey.NotAfter, k.NotAfter))
	return k, nil
}
