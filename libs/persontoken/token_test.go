package persontoken_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/persontoken"
	"lockstep.internal/libs/topology"
)

const cell topology.Cell = "local"

var (
	now  = time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	both = []persontoken.Scope{persontoken.ScopeStartWorkspaces, persontoken.ScopeCreateTokens}
)

func newKey(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return public, private
}

func sign(t *testing.T, key ed25519.PrivateKey) string {
	t.Helper()
	signer, err := persontoken.NewSigner(key, cell)
	require.NoError(t, err)
	token, err := signer.Sign(7, both, now)
	require.NoError(t, err)
	return token
}

func TestTokenNamesPersonAndScopes(t *testing.T) {
	t.Parallel()
	old, _ := newKey(t)
	public, private := newKey(t)
	token := sign(t, private)
	require.True(t, persontoken.Is(token))
	require.False(t, persontoken.Is("lsp_local_7_abc"))
	require.LessOrEqual(t, len(token), persontoken.MaxLength)
	person, err := persontoken.Verify([]ed25519.PublicKey{old, public}, cell, token, now.Add(time.Second))
	require.NoError(t, err)
	require.Equal(t, persontoken.Person{UserID: 7, Scopes: both, ExpiresAt: now.Add(time.Minute)},
		persontoken.Person{UserID: person.UserID, Scopes: person.Scopes, ExpiresAt: person.ExpiresAt.UTC()})
	require.True(t, person.Permits(persontoken.ScopeStartWorkspaces))
	require.False(t, persontoken.Person{Scopes: both[:1]}.Permits(persontoken.ScopeCreateTokens))
}

func TestSignerRefusesWhatNoVerifierAccepts(t *testing.T) {
	t.Parallel()
	_, private := newKey(t)
	signer, err := persontoken.NewSigner(private, cell)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		user   int64
		scopes []persontoken.Scope
	}{
		"no user":       {0, both},
		"no scope":      {7, nil},
		"unknown scope": {7, []persontoken.Scope{"everything"}},
	} {
		_, err := signer.Sign(c.user, c.scopes, now)
		require.ErrorIs(t, err, persontoken.ErrInvalid, name)
	}
	_, err = persontoken.NewSigner(private[:10], cell)
	require.ErrorContains(t, err, "10 bytes")
	_, err = persontoken.NewSigner(private, "not a cell")
	require.Error(t, err)
}

// forged is a token that differs from a valid one.
type forged struct {
	claims jwt.MapClaims
	header map[string]any
	method jwt.SigningMethod
	key    any
}

func TestVerifyRefusesForgedTokens(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	_, stranger := newKey(t)
	claims := jwt.MapClaims{}
	parsed, _, err := jwt.NewParser().ParseUnverified(sign(t, private), claims)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*forged)
		reason string
	}{
		"nothing changed":  {func(*forged) {}, ""},
		"another key":      {func(f *forged) { f.key = stranger }, "signature"},
		"unknown key id":   {func(f *forged) { f.header["kid"] = "x" }, "gateway.public_keys"},
		"no key id":        {func(f *forged) { delete(f.header, "kid") }, "gateway.public_keys"},
		"an access token":  {func(f *forged) { f.header["typ"] = "at+jwt" }, "not a token of a gateway"},
		"any JWT":          {func(f *forged) { f.header["typ"] = "JWT" }, "not a token of a gateway"},
		"another cell":     {func(f *forged) { f.claims["aud"] = persontoken.Audience("other") }, "it is not for"},
		"another issuer":   {func(f *forged) { f.claims["iss"] = "lockstep/local/state" }, "issuer"},
		"no expiry":        {func(f *forged) { delete(f.claims, "exp") }, "required claim"},
		"no issue time":    {func(f *forged) { delete(f.claims, "iat") }, "lifetime"},
		"a long life":      {func(f *forged) { f.claims["exp"] = now.Add(time.Hour).Unix() }, "lifetime"},
		"from the future":  {func(f *forged) { f.claims["iat"] = now.Add(time.Hour).Unix() }, "future"},
		"expired":          {func(f *forged) { f.claims["exp"] = now.Add(-time.Minute).Unix() }, "expired"},
		"no subject":       {func(f *forged) { delete(f.claims, "sub") }, "subject"},
		"user zero":        {func(f *forged) { f.claims["sub"] = "0" }, "subject"},
		"user with a sign": {func(f *forged) { f.claims["sub"] = "+7" }, "subject"},
		"no scope":         {func(f *forged) { delete(f.claims, "scope") }, "scopes"},
		"unknown scope":    {func(f *forged) { f.claims["scope"] = []string{"admin"} }, "unknown"},
		"scope as a text":  {func(f *forged) { f.claims["scope"] = "tokens.create" }, "malformed"},
		"many scopes":      {func(f *forged) { f.claims["scope"] = make([]string, 9) }, "9 scopes"},
		"not signed": {func(f *forged) {
			f.method, f.key = jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType
		}, "signature"},
		"the public key as a shared secret": {func(f *forged) {
			f.method, f.key = jwt.SigningMethodHS256, []byte(public)
		}, "signature"},
	} {
		f := forged{claims: jwt.MapClaims{}, header: map[string]any{}, method: jwt.SigningMethodEdDSA, key: private}
		maps.Copy(f.claims, claims)
		maps.Copy(f.header, parsed.Header)
		c.change(&f)
		token := jwt.NewWithClaims(f.method, f.claims)
		for k, v := range f.header {
			if k != "alg" {
				token.Header[k] = v
			}
		}
		if _, present := f.header["kid"]; !present {
			delete(token.Header, "kid")
		}
		text, err := token.SignedString(f.key)
		require.NoError(t, err, name)
		_, err = persontoken.Verify([]ed25519.PublicKey{public}, cell, text, now)
		if c.reason == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, persontoken.ErrInvalid, name)
		require.ErrorContains(t, err, c.reason, name)
		require.NotContains(t, err.Error(), text, name)
	}
}

func TestVerifyRefusesMalformedTokens(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	token := sign(t, private)
	head, rest, _ := strings.Cut(token, ".")
	body, signature, _ := strings.Cut(rest, ".")
	for name, text := range map[string]string{
		"empty":              "",
		"a part is missing":  head + "." + body,
		"no signature":       head + "." + body + ".",
		"changed body":       head + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"1"}`)) + "." + signature,
		"with white space":   token + "\n",
		"with padding":       token + "=",
		"too long":           token + strings.Repeat("a", persontoken.MaxLength),
		"not base64 at all":  "eyJ€.eyJ.x",
		"an access token id": "lsp_local_1_secret",
	} {
		_, err := persontoken.Verify([]ed25519.PublicKey{public}, cell, text, now)
		require.ErrorIs(t, err, persontoken.ErrInvalid, name)
	}
	_, err := persontoken.Verify(nil, cell, token, now)
	require.ErrorContains(t, err, "gateway.public_keys")
	_, err = persontoken.Verify([]ed25519.PublicKey{public[:5]}, cell, token, now)
	require.ErrorContains(t, err, "gateway.public_keys")
}

func TestTokenExpiresAfterAMinuteAndSkew(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	keys, token := []ed25519.PublicKey{public}, sign(t, private)
	for after, valid := range map[time.Duration]bool{
		-31 * time.Second: false, -29 * time.Second: true, 89 * time.Second: true, 91 * time.Second: false,
	} {
		_, err := persontoken.Verify(keys, cell, token, now.Add(after))
		require.Equal(t, valid, err == nil, "%s: %v", after, err)
	}
}

func TestPublicKeyHasOpenSSHsFormat(t *testing.T) {
	t.Parallel()
	public, _ := newKey(t)
	text, err := persontoken.FormatPublicKey(public)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, "ssh-ed25519 AAAA"), text)
	read, err := persontoken.ParsePublicKey(text + " gateway@example")
	require.NoError(t, err)
	require.Equal(t, public, read)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	wrapped, err := ssh.NewPublicKey(&other.PublicKey)
	require.NoError(t, err)
	for name, bad := range map[string]string{
		"nothing": "", "no key": "gateway", "two keys": text + "\n" + text, "options": `command="x" ` + text,
		"RSA": string(ssh.MarshalAuthorizedKey(wrapped)),
	} {
		_, err := persontoken.ParsePublicKey(bad)
		require.ErrorIs(t, err, persontoken.ErrInvalidKey, name)
	}
	_, err = persontoken.FormatPublicKey(public[:3])
	require.Error(t, err)
}
