package forward_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/forward"
)

// A token that was accepted is remembered, but not beyond its own end: that of a user counts until the clocks' difference is over, that of a service, too.
func TestATokenIsRememberedUntilItEnds(t *testing.T) {
	t.Parallel()
	const life, userSkew = 7 * time.Second, 3 * time.Second
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	user, err := access.Sign(private, "k", access.Grant{Issuer: access.Issuer("local"), Audience: []string{"relay"}, UserID: reader, IssuedAt: began, ExpiresAt: began.Add(life)})
	require.NoError(t, err)
	cfg := auth.Config{Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{shared}, Lifetime: life, Now: func() time.Time { return began }}
	signer, err := auth.NewSigner(cfg)
	require.NoError(t, err)
	service, err := signer.Sign("ci")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		token string
		skew  time.Duration
	}{"a user": {user, userSkew}, "a service": {service, auth.MaxSkew}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := began
			now := func() time.Time { return at }
			known := &fakeDirectory{
				changed: make(chan struct{}), key: directory.Key{ID: "k", Public: public, NotBefore: began.Add(-time.Hour), NotAfter: began.Add(time.Hour)},
				users: map[int64]directory.User{reader: {ID: reader}},
			}
			users, err := access.NewVerifier(access.Config{Directory: known, Cell: "local", Audience: "relay", Skew: userSkew, Now: now})
			require.NoError(t, err)
			of := cfg
			of.Now = now
			services, err := auth.NewVerifier(of)
			require.NoError(t, err)
			a := forward.NewAuthenticator(users, services, known.Changed, now)
			ask := func(after time.Duration) error {
				at = began.Add(after)
				_, err := a.Caller(http.Header{"Authorization": {"Bearer " + c.token}})
				return err
			}
			for _, after := range []time.Duration{0, life - 1, life + c.skew - time.Second} {
				require.NoError(t, ask(after), after)
			}
			err = ask(life + c.skew)
			require.True(t, fault.Is(err, errcode.Unauthenticated), "%v", err)
			require.NoError(t, ask(0), "the clock is set back")
			known.change(func() { known.key.ID = "another" })
			if c.token == user {
				require.Error(t, ask(1), "nothing is remembered when the directory changes")
			}
		})
	}
}
