package forward_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
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

// A verified token is cached at most until it expires, plus the allowed clock skew.
func TestCachedTokenExpires(t *testing.T) {
	t.Parallel()
	const lifetime, userSkew = 7 * time.Second, 3 * time.Second
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	user, err := access.Sign(private, "k", access.Grant{
		Issuer: access.Issuer("local"), Audience: []string{"relay"}, UserID: reader, IssuedAt: start,
		ExpiresAt: start.Add(lifetime),
	})
	require.NoError(t, err)
	cfg := auth.Config{
		Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{serviceSecret}, Lifetime: lifetime,
		Now: func() time.Time { return start },
	}
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
			at := start
			now := func() time.Time { return at }
			fake := &fakeDirectory{
				changed: make(chan struct{}),
				key:     directory.Key{ID: "k", Public: public, NotBefore: start.Add(-time.Hour), NotAfter: start.Add(time.Hour)},
				users:   map[int64]directory.User{reader: {ID: reader}},
			}
			users, err := access.NewVerifier(access.Config{
				Directory: fake, Cell: "local", Audience: "relay", Skew: userSkew, Now: now,
			})
			require.NoError(t, err)
			serviceConfig := cfg
			serviceConfig.Now = now
			services, err := auth.NewVerifier(serviceConfig)
			require.NoError(t, err)
			a := forward.NewAuthenticator(users, services, fake.Changed, now)
			authenticateAfter := func(after time.Duration) error {
				at = start.Add(after)
				_, err := a.Caller(http.Header{"Authorization": {"Bearer " + c.token}})
				return err
			}
			for _, after := range []time.Duration{0, lifetime - 1, lifetime + c.skew - time.Second} {
				require.NoError(t, authenticateAfter(after), after)
			}
			err = authenticateAfter(lifetime + c.skew)
			require.True(t, fault.Is(err, errcode.Unauthenticated), "%v", err)
			require.NoError(t, authenticateAfter(0), "the clock is set back")
			fake.change(func() { fake.key.ID = "another" })
			if c.token == user {
				require.Error(t, authenticateAfter(1), "a directory change clears the cache")
			}
		})
	}
}

// A token is accepted only by its audience, and its algorithm is not trusted.
func TestInvalidTokensAreRejected(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
	segment := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	claims := segment(fmt.Sprintf(`{"iss":"gitlab","aud":"gitlab-kas","sub":"ci","exp":%d}`,
		time.Now().Add(time.Hour).Unix()))
	sign := func(cfg auth.Config) string {
		cfg.Lifetime = time.Minute
		s, err := auth.NewSigner(cfg)
		require.NoError(t, err)
		token, err := s.Sign("ci")
		require.NoError(t, err)
		return token
	}
	user := strings.TrimPrefix(f.token(developer), "Bearer ")
	for name, token := range map[string]string{
		"empty":                "",
		"alg none":             segment(`{"alg":"none","typ":"JWT"}`) + "." + claims + ".",
		"alg none, mixed case": segment(`{"alg":"nOnE"}`) + "." + claims + ".",
		"token of another relay, same secret": sign(auth.Config{
			Issuer: "lockstep-relay", Audience: "lockstep-relay", Secrets: [][]byte{serviceSecret},
		}),
		"signed with a public key as the secret": sign(auth.Config{
			Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{f.directory.key.Public},
		}),
		"user token with HS256 header": segment(`{"alg":"HS256","typ":"at+jwt","kid":"k"}`) + "." +
			strings.Join(strings.Split(user, ".")[1:], "."),
		"service claims with EdDSA header": segment(`{"alg":"EdDSA","typ":"at+jwt","kid":"k"}`) + "." +
			claims + "." + segment("x"),
		"trailing byte": user + "x",
		"agent token":   "lsa_0123456789",
	} {
		response, body := f.request(0, http.MethodGet, "/agents/7/kubernetes/api", http.Header{
			"Authorization": {"Bearer " + token},
		})
		require.Equal(t, http.StatusUnauthorized, response.StatusCode, name)
		if token != "" {
			require.NotContains(t, body, token, name)
		}
	}
	response, _ := f.request(0, http.MethodGet, "/agents/7/kubernetes/api", http.Header{
		"Authorization": {"Bearer " + user, "Bearer " + user},
	})
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	require.Zero(t, f.opened.Load())
	require.Empty(t, f.auditRecords())
	require.NotContains(t, f.logs.String(), user)
}

func TestDirectoryChangeInvalidatesTokenCache(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
	token := http.Header{"Authorization": {f.token(developer)}}
	response, _ := f.request(0, http.MethodGet, "/agents/7/kubernetes/api", token)
	require.Equal(t, http.StatusOK, response.StatusCode)
	f.directory.change(func() { f.directory.users[developer] = directory.User{ID: developer, Blocked: true} })
	response, _ = f.request(0, http.MethodGet, "/agents/7/kubernetes/api", token)
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	f.directory.change(func() {
		f.directory.users[developer] = directory.User{ID: developer}
		f.directory.key.ID = "another"
	})
	response, _ = f.request(0, http.MethodGet, "/agents/7/kubernetes/api", token)
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}
