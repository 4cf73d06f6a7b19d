package natsauth_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

func TestTokens(t *testing.T) {
	t.Parallel()

	pattern := regexp.MustCompile(natsauth.TokenPattern)

	for _, kind := range []natsauth.TokenKind{natsauth.TokenAgent, natsauth.TokenPersonal, natsauth.TokenSubscriber} {
		one, two := natsauth.NewToken(kind), natsauth.NewToken(kind)
		require.NotEqual(t, one, two)
		require.Equal(t, one, pattern.FindString("token: "+one+"\n"))

		hash, err := natsauth.HashToken(kind, one)
		require.NoError(t, err)
		again, err := natsauth.HashToken(kind, one)
		require.NoError(t, err)
		require.Equal(t, hash, again)

		other, err := natsauth.HashToken(kind, two)
		require.NoError(t, err)
		require.NotEqual(t, hash, other)
	}
}

func TestHashTokenRejectsOtherTexts(t *testing.T) {
	t.Parallel()

	token := natsauth.NewToken(natsauth.TokenAgent)
	bad := []string{
		"", "lsa_", token[:len(token)-1], token + "a", strings.ToUpper(token), " " + token, token + "\n",
		natsauth.NewToken(natsauth.TokenPersonal), "lsp" + token[3:],
	}

	// Every character counts, in every place.
	for i := len("lsa_"); i < len(token); i++ {
		for _, r := range "a7-0" {
			if changed := token[:i] + string(r) + token[i+1:]; changed != token {
				bad = append(bad, changed)
			}
		}
	}

	for _, text := range bad {
		_, err := natsauth.HashToken(natsauth.TokenAgent, text)
		require.ErrorIs(t, err, natsauth.ErrMalformedToken, text)
		require.NotContains(t, err.Error(), token[len("lsa_"):20], "an error must not quote a token")
	}
}

func FuzzHashToken(f *testing.F) {
	f.Add(natsauth.NewToken(natsauth.TokenAgent))
	f.Add("lsa_aaaa")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := natsauth.HashToken(natsauth.TokenAgent, text); err == nil {
			require.Regexp(t, "^"+natsauth.TokenPattern+"$", text)
		}
	})
}
