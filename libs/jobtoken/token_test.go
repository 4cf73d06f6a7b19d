package jobtoken_test

import (
	"crypto/ed25519"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/topology"
)

// privateKey returns a fixed key.
func privateKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(slices.Repeat([]byte{seed}, ed25519.SeedSize))
}

func publicKey(seed byte) ed25519.PublicKey {
	public, ok := privateKey(seed).Public().(ed25519.PublicKey)
	if !ok {
		panic("no Ed25519 key")
	}
	return public
}

func issued() time.Time { return time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC) }

func valid() jobtoken.Claims {
	return jobtoken.Claims{
		ID: "0193-random", JobID: 42, ProjectID: 7, OrganizationID: 3, Attempt: 2, Cell: "one",
		Scopes:         []jobtoken.Scope{jobtoken.ScopeUpdate, jobtoken.ScopeTrace, jobtoken.ScopeDownload},
		ArtifactJobIDs: []int64{40, 41}, IssuedAt: issued(), ExpiresAt: issued().Add(time.Hour),
	}
}

// keys: cell one has the keys 1 and 2, cell two has the key 3, which has the id of the first.
func keys(cell topology.Cell, id string) (ed25519.PublicKey, bool) {
	key, found := map[string]ed25519.PublicKey{
		"one/first": publicKey(1), "one/second": publicKey(2), "two/first": publicKey(3), "one/broken": {1, 2},
	}[string(cell)+"/"+id]
	return key, found
}

func verifier(at time.Time) *jobtoken.Verifier {
	return jobtoken.NewVerifier(keys, func() time.Time { return at })
}

func sign(t *testing.T, id string, seed byte, claims jobtoken.Claims) string {
	t.Helper()
	token, err := jobtoken.Sign(id, privateKey(seed), claims)
	require.NoError(t, err)
	return token
}

func TestSignedTokensAreVerified(t *testing.T) {
	t.Parallel()
	for _, key := range []struct {
		id   string
		seed byte
	}{{"first", 1}, {"second", 2}} {
		token := sign(t, key.id, key.seed, valid())
		require.True(t, strings.HasPrefix(token, "glcbt-ey"))
		require.True(t, jobtoken.Is(token))
		claims, err := verifier(issued()).Verify(token)
		require.NoError(t, err)
		claims.IssuedAt, claims.ExpiresAt = claims.IssuedAt.UTC(), claims.ExpiresAt.UTC()
		require.Equal(t, valid(), claims)
	}
}

func TestScopesAreRights(t *testing.T) {
	t.Parallel()
	claims := valid()
	require.True(t, claims.Permits(jobtoken.ScopeTrace))
	require.False(t, claims.Permits(jobtoken.ScopeUpload))
	require.True(t, claims.PermitsArtifacts(41))
	require.False(t, claims.PermitsArtifacts(42))
	claims.Scopes = []jobtoken.Scope{jobtoken.ScopeUpdate}
	require.False(t, claims.PermitsArtifacts(41), "a job without the scope")
}

func TestExpiredTokensAreAuthenticButNotValid(t *testing.T) {
	t.Parallel()
	token := sign(t, "first", 1, valid())
	for name, c := range map[string]struct {
		at    time.Time
		valid bool
	}{
		"long before":   {issued().Add(-time.Minute), false},
		"a slow clock":  {issued().Add(-29 * time.Second), true},
		"the last time": {issued().Add(time.Hour + 29*time.Second), true},
		"expired":       {issued().Add(time.Hour + 30*time.Second), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := verifier(c.at).Verify(token)
			if c.valid {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, jobtoken.ErrExpired)
			}
			claims, err := verifier(c.at).Authentic(token)
			require.NoError(t, err)
			require.Equal(t, topology.Cell("one"), claims.Cell)
		})
	}
}

// forge signs any claims with any method and header.
func forge(t *testing.T, method jwt.SigningMethod, key any, header, claims map[string]any) string {
	t.Helper()
	content := jwt.MapClaims{
		"jti": "x", "job_id": 42, "project_id": 7, "organization_id": 3, "cell": "one", "scopes": []string{"job_trace"},
		"iat": issued().Unix(), "exp": issued().Add(time.Hour).Unix(),
	}
	for name, value := range claims {
		if content[name] = value; value == nil {
			delete(content, name)
		}
	}
	token := jwt.NewWithClaims(method, content)
	token.Header["kid"], token.Header["typ"] = "first", "job+jwt"
	maps.Copy(token.Header, header)
	signed, err := token.SignedString(key)
	require.NoError(t, err)
	return jobtoken.Prefix + signed
}

func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	own := privateKey(1)
	good := forge(t, jwt.SigningMethodEdDSA, own, nil, nil)
	_, err := verifier(issued()).Verify(good)
	require.NoError(t, err, "the helper makes valid tokens")
	parts := strings.Split(good, ".")
	other := strings.Split(forge(t, jwt.SigningMethodEdDSA, own, nil, map[string]any{"job_id": 43}), ".")
	header := func(name string, value any) string {
		return forge(t, jwt.SigningMethodEdDSA, own, map[string]any{name: value}, nil)
	}
	claim := func(name string, value any) string {
		return forge(t, jwt.SigningMethodEdDSA, own, nil, map[string]any{name: value})
	}
	unsigned := forge(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil, nil)
	for name, c := range map[string]struct {
		token string
		want  error
	}{
		"empty":                       {"", jobtoken.ErrMalformed},
		"only a prefix":               {"glcbt-", jobtoken.ErrMalformed},
		"no prefix":                   {strings.TrimPrefix(good, "glcbt-"), jobtoken.ErrMalformed},
		"old job token":               {"glcbt-64_x1Yz4nTkq8sPEr2sWQv", jobtoken.ErrMalformed},
		"too long":                    {good + strings.Repeat("A", jobtoken.MaxLength), jobtoken.ErrMalformed},
		"two parts":                   {parts[0] + "." + parts[1], jobtoken.ErrMalformed},
		"no signature":                {parts[0] + "." + parts[1] + ".", jobtoken.ErrForged},
		"claims of another token":     {parts[0] + "." + other[1] + "." + parts[2], jobtoken.ErrForged},
		"key of another cell":         {sign(t, "first", 3, valid()), jobtoken.ErrForged},
		"another key of the cell":     {sign(t, "first", 2, valid()), jobtoken.ErrForged},
		"cell of another key":         {claim("cell", "two"), jobtoken.ErrForged},
		"unknown cell":                {claim("cell", "three"), jobtoken.ErrUnknownKey},
		"no cell":                     {claim("cell", nil), jobtoken.ErrUnknownKey},
		"cell is no name":             {claim("cell", "one/first"), jobtoken.ErrUnknownKey},
		"unknown key":                 {header("kid", "third"), jobtoken.ErrUnknownKey},
		"key of a wrong size":         {header("kid", "broken"), jobtoken.ErrUnknownKey},
		"key id is no text":           {header("kid", 1), jobtoken.ErrUnknownKey},
		"no key id":                   {header("kid", ""), jobtoken.ErrUnknownKey},
		"another kind of JWT":         {header("typ", "at+jwt"), jobtoken.ErrMalformed},
		"no algorithm":                {unsigned, jobtoken.ErrForged},
		"public key as shared secret": {forge(t, jwt.SigningMethodHS256, []byte(publicKey(1)), nil, nil), jobtoken.ErrForged},
		"no job":                      {claim("job_id", nil), jobtoken.ErrMalformed},
		"negative job":                {claim("job_id", -1), jobtoken.ErrMalformed},
		"no project":                  {claim("project_id", nil), jobtoken.ErrMalformed},
		"no organization":             {claim("organization_id", nil), jobtoken.ErrMalformed},
		"no id":                       {claim("jti", nil), jobtoken.ErrMalformed},
		"no scope":                    {claim("scopes", nil), jobtoken.ErrMalformed},
		"scope is no list":            {claim("scopes", "job_trace"), jobtoken.ErrMalformed},
		"no end":                      {claim("exp", nil), jobtoken.ErrMalformed},
		"no begin":                    {claim("iat", nil), jobtoken.ErrMalformed},
		"end before begin":            {claim("exp", issued().Unix()), jobtoken.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := verifier(issued()).Authentic(c.token)
			require.ErrorIs(t, err, c.want)
			require.NotContains(t, err.Error(), parts[1][:20], "errors do not quote tokens")
			_, err = verifier(issued()).Verify(c.token)
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestClaimsThatNobodyAcceptsAreNotSigned(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*jobtoken.Claims){
		"no id":          func(c *jobtoken.Claims) { c.ID = "" },
		"long id":        func(c *jobtoken.Claims) { c.ID = strings.Repeat("x", 65) },
		"no job":         func(c *jobtoken.Claims) { c.JobID = 0 },
		"no project":     func(c *jobtoken.Claims) { c.ProjectID = 0 },
		"no cell":        func(c *jobtoken.Claims) { c.Cell = "" },
		"attempt":        func(c *jobtoken.Claims) { c.Attempt = -1 },
		"no scope":       func(c *jobtoken.Claims) { c.Scopes = nil },
		"many artifacts": func(c *jobtoken.Claims) { c.ArtifactJobIDs = make([]int64, 65) },
		"no validity":    func(c *jobtoken.Claims) { c.ExpiresAt = c.IssuedAt },
		"no begin":       func(c *jobtoken.Claims) { c.IssuedAt = time.Time{} },
		"long scopes":    func(c *jobtoken.Claims) { c.Scopes = []jobtoken.Scope{jobtoken.Scope(strings.Repeat("x", 4000))} },
	} {
		claims := valid()
		change(&claims)
		_, err := jobtoken.Sign("first", privateKey(1), claims)
		require.ErrorIs(t, err, jobtoken.ErrInvalidClaims, name)
	}
	_, err := jobtoken.Sign("", privateKey(1), valid())
	require.ErrorIs(t, err, jobtoken.ErrInvalidClaims)
	_, err = jobtoken.Sign("first", privateKey(1)[:10], valid())
	require.ErrorIs(t, err, jobtoken.ErrInvalidClaims)
}

// TestLargestTokenFits has the highest numbers, and the most artifacts that a token may name.
func TestLargestTokenFits(t *testing.T) {
	t.Parallel()
	claims := valid()
	claims.Cell = topology.Cell(strings.Repeat("c", 63))
	claims.JobID, claims.ProjectID, claims.OrganizationID = math.MaxInt64, math.MaxInt64, math.MaxInt64
	claims.ArtifactJobIDs = slices.Repeat([]int64{math.MaxInt64}, jobtoken.MaxArtifactJobs)
	claims.Scopes = []jobtoken.Scope{
		jobtoken.ScopeUpdate, jobtoken.ScopeTrace, jobtoken.ScopeUpload, jobtoken.ScopeDownload,
		jobtoken.ScopeRegistryPull, jobtoken.ScopeRegistryPush,
	}
	sign(t, strings.Repeat("k", 64), 1, claims)
}

func TestKeySetRoundTrips(t *testing.T) {
	t.Parallel()
	set := jobtoken.KeySet{{ID: "first", Public: publicKey(1)}, {ID: "second", Public: publicKey(2)}}
	text, err := json.Marshal(set)
	require.NoError(t, err)
	require.Contains(t, string(text), `{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"first","x":"`)
	var read jobtoken.KeySet
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, set, read)
	key, found := read.Find("second")
	require.True(t, found)
	require.Equal(t, publicKey(2), key)
	_, found = read.Find("third")
	require.False(t, found)
	empty, err := json.Marshal(jobtoken.KeySet(nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"keys":[]}`, string(empty))
}

func TestInvalidKeySetsAreRefused(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(jobtoken.KeySet{{ID: "first", Public: publicKey(1)}})
	require.NoError(t, err)
	key := strings.TrimSuffix(strings.TrimPrefix(string(text), `{"keys":[`), `]}`)
	for name, set := range map[string]string{
		"no object":      `[]`,
		"RSA":            `{"keys":[` + strings.Replace(key, "OKP", "RSA", 1) + `]}`,
		"X25519":         `{"keys":[` + strings.Replace(key, `"Ed25519"`, `"X25519"`, 1) + `]}`,
		"for encryption": `{"keys":[` + strings.Replace(key, `"sig"`, `"enc"`, 1) + `]}`,
		"twice":          `{"keys":[` + key + `,` + key + `]}`,
		"no id":          `{"keys":[` + strings.Replace(key, `"first"`, `""`, 1) + `]}`,
		"id":             `{"keys":[` + strings.Replace(key, `"first"`, `"a b"`, 1) + `]}`,
		"short":          `{"keys":[` + strings.Replace(key, `"x":"`, `"x":"","y":"`, 1) + `]}`,
		"no base64":      `{"keys":[` + strings.Replace(key, `"x":"`, `"x":"!`, 1) + `]}`,
		"too many":       `{"keys":[` + strings.TrimSuffix(strings.Repeat(key+",", 17), ",") + `]}`,
	} {
		var read jobtoken.KeySet
		err := json.Unmarshal([]byte(set), &read)
		require.ErrorIs(t, err, jobtoken.ErrInvalidKeySet, name)
		require.Empty(t, read)
	}
	_, err = json.Marshal(jobtoken.KeySet{{ID: "first", Public: publicKey(1)[:3]}})
	require.ErrorIs(t, err, jobtoken.ErrInvalidKeySet)
}

// FuzzVerify checks that nothing but what a cell has signed is accepted.
func FuzzVerify(f *testing.F) {
	token, err := jobtoken.Sign("first", privateKey(1), valid())
	require.NoError(f, err)
	f.Add(token)
	f.Add(token[:len(token)-1])
	f.Add("glcbt-e30.e30.")
	f.Add("glcbt-" + strings.Repeat(".", 5000))
	f.Fuzz(func(t *testing.T, text string) {
		claims, err := verifier(issued()).Verify(text)
		if err != nil {
			require.Equal(t, jobtoken.Claims{}, claims)
			return
		}
		require.Equal(t, token, text)
	})
}
