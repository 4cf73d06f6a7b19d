package access_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
)

func TestTokenOfStateIsAccepted(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	caller, err := b.verifier.Verify(b.sign(t))
	require.NoError(t, err)
	require.Equal(t, int64(5), caller.UserID)
	require.False(t, caller.Admin)
	require.True(t, caller.ExpiresAt.Equal(b.now.Add(access.TokenLifetime)), caller.ExpiresAt)
	caller, err = b.verifier.Verify(b.sign(t, func(g *access.Grant) { g.Audience = []string{"other", audience} }))
	require.NoError(t, err)
	require.Equal(t, int64(5), caller.UserID)
	admin := func(g *access.Grant) { g.UserID, g.Admin = 6, true }
	caller, err = b.verifier.Verify(b.sign(t, admin))
	require.NoError(t, err)
	require.True(t, caller.Admin)
	caller, err = b.verifier.Verify(b.sign(t, func(g *access.Grant) { g.UserID = 6 }))
	require.NoError(t, err)
	require.False(t, caller.Admin, "made before the user was an administrator")
	b.book.write(func() { b.book.users[6] = directory.User{ID: 6} })
	caller, err = b.verifier.Verify(b.sign(t, admin))
	require.NoError(t, err)
	require.False(t, caller.Admin, "no administrator any more")
}

func TestAccessTokenOfARevokedTokenIsRefused(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	token := b.sign(t, func(g *access.Grant) { g.TokenID = 11 })
	other := b.sign(t, func(g *access.Grant) { g.TokenID = 12 })
	_, err := b.verifier.Verify(token)
	require.NoError(t, err)
	b.book.write(func() { b.book.users[5] = directory.User{ID: 5, RevokedTokens: []int64{10, 11}} })
	_, err = b.verifier.Verify(token)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.ErrorContains(t, err, "token 11, from which the access token was made, is revoked")
	_, err = b.verifier.Verify(other)
	require.NoError(t, err)
}

func TestClockSkewIsTolerated(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	for name, c := range map[string]struct {
		shift time.Duration
		ok    bool
	}{
		"now":            {0, true},
		"a little late":  {29 * time.Second, true},
		"a little early": {-access.TokenLifetime - 29*time.Second, true},
		"late":           {31 * time.Second, false}, "over": {-access.TokenLifetime - 31*time.Second, false},
	} {
		_, err := b.verifier.Verify(b.sign(t, func(g *access.Grant) {
			g.IssuedAt, g.ExpiresAt = g.IssuedAt.Add(c.shift), g.ExpiresAt.Add(c.shift)
		}))
		require.Equal(t, c.ok, err == nil, "%s: %v", name, err)
	}
}

// handmade signs a token with any header and claims.
func handmade(t *testing.T, key ed25519.PrivateKey, header, claims map[string]any) string {
	t.Helper()
	part := func(v any) string {
		raw, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	signed := part(header) + "." + part(claims)
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
}

func TestOtherTokensAreRejectedWithTheReason(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	header := func(more map[string]any) map[string]any {
		h := map[string]any{"alg": "EdDSA", "typ": "at+jwt", "kid": "k"}
		maps.Copy(h, more)
		return h
	}
	claims := func(more map[string]any) map[string]any {
		c := map[string]any{
			"iss": access.Issuer(cell), "aud": []string{audience}, "sub": "5", "iat": b.now.Unix(),
			"exp": b.now.Add(access.TokenLifetime).Unix(),
		}
		for k, v := range more {
			c[k] = v
			if v == nil {
				delete(c, k)
			}
		}
		return c
	}
	_, err = b.verifier.Verify(handmade(t, b.private, header(nil), claims(nil)))
	require.NoError(t, err, "the unmodified token must be accepted")
	byHand := func(h, c map[string]any) string { return handmade(t, b.private, header(h), claims(c)) }
	good := b.sign(t)
	signature := strings.LastIndex(good, ".") + 1
	foreignGood, err := access.Sign(stranger, "k", b.grant())
	require.NoError(t, err)
	unknown, err := access.Sign(b.private, "other", b.grant())
	require.NoError(t, err)
	// The public key, which anybody knows, as the secret of a symmetric algorithm.
	symmetric := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims(claims(nil)))
	symmetric.Header["kid"], symmetric.Header["typ"] = "k", "at+jwt"
	public, isKey := b.private.Public().(ed25519.PublicKey)
	require.True(t, isKey)
	hmac, err := symmetric.SignedString([]byte(public))
	require.NoError(t, err)

	for name, c := range map[string]struct {
		token, says string
		code        fault.Code
	}{
		"nothing":                 {token: "", says: "malformed"},
		"garbage":                 {token: "a.b.c", says: "malformed"},
		"four parts":              {token: good + ".x", says: "malformed"},
		"too long":                {token: strings.Repeat("a", 9000), says: "longer than"},
		"a personal access token": {token: natsauth.NewToken(natsauth.TokenPersonal), says: "exchange it"},
		"without its signature":   {token: good[:signature], says: "signature is wrong"},
		"another's signature":     {token: foreignGood, says: "signature is wrong"},
		"a signature cut":         {token: good[:len(good)-4], says: "refused"},
		"an unknown key":          {token: unknown, says: "unknown signing key"},
		"no key":                  {token: byHand(map[string]any{"kid": nil}, nil), says: "unknown signing key"},
		"a key that is a number":  {token: byHand(map[string]any{"kid": 1}, nil), says: "unknown signing key"},
		"no algorithm":            {token: byHand(map[string]any{"alg": "none"}, nil), says: "signature is wrong"},
		"a symmetric algorithm":   {token: hmac, says: "signature is wrong"},
		"another type":            {token: byHand(map[string]any{"typ": "JWT"}, nil), says: "it is not an access token"},
		"another issuer": {
			token: byHand(nil, map[string]any{"iss": access.Issuer("other")}),
			says:  "its issuer is not lockstep/local/state",
		},
		"no issuer":        {token: byHand(nil, map[string]any{"iss": nil}), says: "refused"},
		"another audience": {token: byHand(nil, map[string]any{"aud": "relay"}), says: "not for the service deploys"},
		"an audience like it": {
			token: byHand(nil, map[string]any{"aud": []string{"deploys2", "deploy", "Deploys"}}),
			says:  "not for the service deploys",
		},
		"no audience":  {token: byHand(nil, map[string]any{"aud": nil}), says: "refused"},
		"no end":       {token: byHand(nil, map[string]any{"exp": nil}), says: "a required claim is missing"},
		"no beginning": {token: byHand(nil, map[string]any{"iat": nil}), says: "outside of its key's validity"},
		"too long a life": {
			token: byHand(nil, map[string]any{"exp": b.now.Add(30 * time.Minute).Unix()}),
			says:  "lifetime exceeds",
		},
		"longer than its key": {
			token: byHand(nil, map[string]any{"exp": b.now.Add(2 * time.Hour).Unix()}),
			says:  "outside of its key's validity",
		},
		"not yet": {
			token: byHand(nil, map[string]any{"nbf": b.now.Add(time.Hour).Unix()}),
			says:  "not valid yet",
		},
		"no user":            {token: byHand(nil, map[string]any{"sub": nil}), says: "has no valid subject"},
		"a user with a name": {token: byHand(nil, map[string]any{"sub": "admin"}), says: "has no valid subject"},
		"no such user": {
			token: byHand(nil, map[string]any{"sub": "99"}),
			says:  "user 99 of the access token does not exist",
		},
		"a blocked user": {
			token: byHand(nil, map[string]any{"sub": "7"}),
			says:  "blocked",
			code:  errcode.PermissionDenied,
		},
		"a time that is no number": {token: byHand(nil, map[string]any{"exp": "tomorrow"}), says: "malformed"},
	} {
		_, err := b.verifier.Verify(c.token)
		if c.code == "" {
			c.code = errcode.Unauthenticated
		}
		require.Equal(t, c.code, fault.CodeOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, c.says, name)
		if len(c.token) > 20 {
			require.NotContains(t, err.Error(), c.token[len(c.token)-16:], name)
		}
	}
	// Every character of a token counts.
	for i := range good {
		other := byte('A')
		if good[i] == other {
			other = 'B'
		}
		_, err := b.verifier.Verify(good[:i] + string(other) + good[i+1:])
		require.Error(t, err, "character %d", i)
	}
}

func TestRevokedOrExpiredKeyIsRejected(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	token := b.sign(t)
	key := b.book.keys["k"]
	key.NotAfter = b.now.Add(-time.Minute)
	b.book.write(func() { b.book.keys["k"] = key })
	_, err := b.verifier.Verify(token)
	require.ErrorContains(t, err, "outside of its key's validity")
	key.NotAfter, key.NotBefore = b.now.Add(time.Hour), b.now.Add(time.Minute)
	b.book.write(func() { b.book.keys["k"] = key })
	_, err = b.verifier.Verify(token)
	require.ErrorContains(t, err, "outside of its key's validity")
	b.book.write(func() { delete(b.book.keys, "k") })
	_, err = b.verifier.Verify(token)
	require.ErrorContains(t, err, "unknown signing key")
}

func TestNoAccessBeforeTheDirectoryIsReady(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.book.write(func() { b.book.ready = false })
	_, err := b.verifier.Verify(b.sign(t))
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
}

func TestSignRejectsInvalidGrants(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	for name, spoil := range map[string]func(*access.Grant){
		"issuer": func(g *access.Grant) { g.Issuer = "" }, "audience": func(g *access.Grant) { g.Audience = nil },
		"user": func(g *access.Grant) { g.UserID = 0 }, "life": func(g *access.Grant) { g.ExpiresAt = g.IssuedAt },
	} {
		g := b.grant()
		spoil(&g)
		_, err := access.Sign(b.private, "k", g)
		require.ErrorIs(t, err, access.ErrInvalidGrant, name)
	}
	_, err := access.Sign(b.private, "", b.grant())
	require.ErrorIs(t, err, access.ErrInvalidGrant)
	_, err = access.Sign(nil, "k", b.grant())
	require.ErrorIs(t, err, access.ErrInvalidGrant)
}

func TestNewVerifierValidatesItsConfig(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	for name, cfg := range map[string]access.Config{
		"directory": {Cell: cell, Audience: audience},
		"audience":  {Directory: b.book, Cell: cell},
		"cell":      {Directory: b.book, Audience: audience, Cell: "a.b"},
		"skew":      {Directory: b.book, Cell: cell, Audience: audience, Skew: time.Hour},
	} {
		_, err := access.NewVerifier(cfg)
		require.ErrorIs(t, err, access.ErrInvalidConfig, name)
	}
}

func FuzzVerify(f *testing.F) {
	b := newFixture(f)
	good := b.sign(f)
	f.Add(good)
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := b.verifier.Verify(token); err == nil {
			require.Equal(t, good, token, "a token that state has not signed is accepted")
		}
	})
}
