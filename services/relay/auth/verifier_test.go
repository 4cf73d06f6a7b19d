package auth_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var now = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

func secret(letter string) []byte { return []byte(strings.Repeat(letter, 32)) }

func config() auth.Config {
	return auth.Config{
		Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{secret("a"), secret("b")},
		Now: func() time.Time { return now },
	}
}

func validClaims() jwt.MapClaims {
	return jwt.MapClaims{
		"iss": "gitlab", "aud": "gitlab-kas", "sub": "rails", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	}
}

func sign(t testing.TB, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	token, err := jwt.NewWithClaims(method, claims).SignedString(key)
	require.NoError(t, err)
	return token
}

func TestTokens(t *testing.T) {
	t.Parallel()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	with := func(changes ...any) jwt.MapClaims {
		c := validClaims()
		for i := 0; i < len(changes); i += 2 {
			if c[changes[i].(string)] = changes[i+1]; changes[i+1] == nil {
				delete(c, changes[i].(string))
			}
		}
		return c
	}
	hs := jwt.SigningMethodHS256
	for name, c := range map[string]struct {
		token   string
		wantErr string
	}{
		"valid":                         {sign(t, hs, secret("a"), validClaims()), ""},
		"the second secret":             {sign(t, hs, secret("b"), validClaims()), ""},
		"HS512":                         {sign(t, jwt.SigningMethodHS512, secret("a"), validClaims()), ""},
		"several audiences":             {sign(t, hs, secret("a"), with("aud", []string{"x", "gitlab-kas"})), ""},
		"expired within the clock skew": {sign(t, hs, secret("a"), with("exp", now.Add(-4*time.Second).Unix())), ""},
		"a third secret":                {sign(t, hs, secret("c"), validClaims()), "not signed with a secret of this relay"},
		"not signed": {
			sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, validClaims()),
			"not signed with a secret of this relay",
		},
		"signed with a private key": {
			sign(t, jwt.SigningMethodEdDSA, private, validClaims()), "not signed with a secret of this relay",
		},
		"expired": {
			sign(t, hs, secret("a"), with("exp", now.Add(-6*time.Second).Unix())), "has expired",
		},
		"without exp": {sign(t, hs, secret("a"), with("exp", nil)), "lacks"},
		"not valid yet": {
			sign(t, hs, secret("a"), with("nbf", now.Add(6*time.Second).Unix())), "is not valid yet",
		},
		"issued in the future": {
			sign(t, hs, secret("a"), with("iat", now.Add(6*time.Second).Unix())), "in the future",
		},
		"another issuer":   {sign(t, hs, secret("a"), with("iss", "gitlab-kas")), "another issuer"},
		"no issuer":        {sign(t, hs, secret("a"), with("iss", nil)), "lacks"},
		"another audience": {sign(t, hs, secret("a"), with("aud", "gitlab")), "another service"},
		"no audience":      {sign(t, hs, secret("a"), with("aud", nil)), "lacks"},
		"empty":            {"", "is not a JWT"},
		"malformed":        {"a.b.c", "is not a JWT"},
		"too long":         {strings.Repeat("a", 9000), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := auth.NewVerifier(config())
			require.NoError(t, err)
			caller, err := v.Verify(c.token)
			if c.wantErr == "" {
				require.NoError(t, err)
				require.Equal(t, "rails", caller.Subject)
				return
			}
			require.ErrorContains(t, err, c.wantErr)
			require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
			if len(c.token) > 10 {
				require.NotContains(t, err.Error(), c.token)
			}
		})
	}
}

func TestLifetimeIsLimited(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.Lifetime = 5 * time.Second
	signer, err := auth.NewSigner(cfg)
	require.NoError(t, err)
	v, err := auth.NewVerifier(cfg)
	require.NoError(t, err)
	token, err := signer.Sign("relay-1")
	require.NoError(t, err)
	caller, err := v.Verify(token)
	require.NoError(t, err)
	require.Equal(t, auth.Caller{
		Subject: "relay-1", ExpiresAt: now.Add(5 * time.Second).Local(), Secret: caller.Secret,
	}, caller)
	require.True(t, v.Accepts(caller.Secret))
	require.NoError(t, v.SetSecrets([][]byte{secret("z")}))
	require.False(t, v.Accepts(caller.Secret))
	_, err = v.Verify(token)
	require.ErrorContains(t, err, "is not signed with a secret of this relay")
	require.NoError(t, v.SetSecrets(cfg.Secrets))
	claims := validClaims()
	_, err = v.Verify(sign(t, jwt.SigningMethodHS256, secret("a"), claims))
	require.ErrorContains(t, err, "is valid for 1m0s: the maximum is 5s")
	delete(claims, "iat")
	_, err = v.Verify(sign(t, jwt.SigningMethodHS256, secret("a"), claims))
	require.ErrorContains(t, err, "iat")
}

func TestInvalidConfigs(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*auth.Config){
		"issuer":         func(c *auth.Config) { c.Issuer = "" },
		"audience":       func(c *auth.Config) { c.Audience = "" },
		"no secret":      func(c *auth.Config) { c.Secrets = nil },
		"three secrets":  func(c *auth.Config) { c.Secrets = [][]byte{secret("a"), secret("b"), secret("c")} },
		"a short secret": func(c *auth.Config) { c.Secrets = [][]byte{[]byte("hunter2")} },
	} {
		cfg := config()
		change(&cfg)
		_, err := auth.NewVerifier(cfg)
		require.ErrorIs(t, err, auth.ErrInvalidConfig, name)
	}
	_, err := auth.NewSigner(config())
	require.ErrorIs(t, err, auth.ErrInvalidConfig, "a signer needs a lifetime")
}
