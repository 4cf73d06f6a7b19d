package admin

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
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
func (s *SigningKeys) Rotate(ctx context.Context) ([]signing.Key, error) {
	var keys []signing.Key
	err := libpostgres.InTx(ctx, s.Directory.DB, func(tx pgx.Tx) error {
		var err error
		if keys, err = s.Keys.Read(ctx, tx); err != nil {
			return err
		}
		if plan := signing.NewPlan(s.Directory.Now(), keys); !plan.Create && len(plan.Expired) == 0 {
			return nil
		}
		// Another replica may do the same, so read again under the lock.
		if err := s.Keys.Lock(ctx, tx); err != nil {
			return err
		}
		if keys, err = s.Keys.Read(ctx, tx); err != nil {
			return err
		}
		keys, err = s.apply(ctx, tx, signing.NewPlan(s.Directory.Now(), keys), keys)
		return err
	})
	return keys, err
}

// apply returns the keys after the plan.
func (s *SigningKeys) apply(
	ctx context.Context, tx pgx.Tx, plan signing.Plan, keys []signing.Key,
) ([]signing.Key, error) {
	for _, expired := range plan.Expired {
		if err := s.Keys.Delete(ctx, tx, expired.ID); err != nil {
			return nil, err
		}
		if err := s.Directory.publish(ctx, tx, expired.Entry(true)); err != nil {
			return nil, err
		}
		keys = slices.DeleteFunc(keys, func(k signing.Key) bool { return k.ID == expired.ID })
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

func (s *SigningKeys) create(ctx context.Context, tx pgx.Tx) (signing.Key, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return signing.Key{}, fmt.Errorf("make a signing key: %w", err)
	}
	now := s.Directory.Now().UTC().Truncate(time.Second)
	k := signing.Key{
		ID:       uuid.Must(uuid.NewV7()).String(),
		Public:   public,
		Private:  private,
		MadeAt:   now,
		NotAfter: signing.End(now),
	}
	if err := s.Keys.Insert(ctx, tx, k); err != nil {
		return signing.Key{}, err
	}
	if err := s.Directory.publish(ctx, tx, k.Entry(false)); err != nil {
		return signing.Key{}, err
	}
	s.Logger.InfoContext(ctx, "created a signing key",
		slog.String(logkey.KeyID, k.ID), slog.Time(logkey.NotAfter, k.NotAfter))
	return k, nil
}
