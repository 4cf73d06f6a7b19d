package token_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/token"
)

func TestATokenIsParsedToItsHash(t *testing.T) {
	t.Parallel()
	value, hash := token.New(token.PersonalAccess)
	require.Regexp(t, `^lsp_[a-z2-7]{59}$`, value)
	parsed, err := token.Parse(token.PersonalAccess, value)
	require.NoError(t, err)
	require.Equal(t, hash, parsed)
	other, otherHash := token.New(token.PersonalAccess)
	require.NotEqual(t, value, other)
	require.NotEqual(t, hash, otherHash)
}

func TestLookAlikesAreRefused(t *testing.T) {
	t.Parallel()
	value, _ := token.New(token.PersonalAccess)
	flipped := value[:10] + string('a'+('z'-value[10])%26) + value[11:]
	for name, bad := range map[string]string{
		"empty": "", "other kind": strings.Replace(value, "lsp", "lsa", 1), "cut": value[:len(value)-1], "longer": value + "a",
		"one character changed": flipped, "upper case": strings.ToUpper(value), "alphabet": value[:10] + "!" + value[11:],
	} {
		_, err := token.Parse(token.PersonalAccess, bad)
		require.ErrorIs(t, err, token.ErrMalformed, name)
		if bad != "" {
			require.NotContains(t, err.Error(), bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	value, _ := token.New(token.Agent)
	f.Add(value)
	f.Fuzz(func(t *testing.T, value string) {
		if _, err := token.Parse(token.Agent, value); err == nil {
			require.Regexp(t, `^lsa_[a-z2-7]{59}$`, value)
		}
	})
}
