package natsauth_test

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/routable"
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

func TestPersonalTokensAreRoutable(t *testing.T) {
	t.Parallel()

	pattern := regexp.MustCompile(natsauth.TokenPattern)
	for _, user := range []int64{1, 12345, math.MaxInt64} {
		token, err := natsauth.NewPersonalToken("eu-west-1", user)
		require.NoError(t, err)
		require.Equal(t, token, pattern.FindString("token: "+token+"\n"))

		parsed, err := routable.Parse(token)
		require.NoError(t, err)
		require.Equal(t, routable.Payload{Cell: "eu-west-1", User: user}, parsed.Payload)

		hash, err := natsauth.HashToken(natsauth.TokenPersonal, token)
		require.NoError(t, err)
		other, err := natsauth.NewPersonalToken("eu-west-1", user)
		require.NoError(t, err)
		otherHash, err := natsauth.HashToken(natsauth.TokenPersonal, other)
		require.NoError(t, err)
		require.NotEqual(t, hash, otherHash)

		for _, kind := range []natsauth.TokenKind{natsauth.TokenAgent, natsauth.TokenSubscriber} {
			_, err = natsauth.HashToken(kind, token)
			require.ErrorIs(t, err, natsauth.ErrMalformedToken)
		}
		for _, text := range []string{token[:len(token)-1], token + "a", " " + token, token + "\n", strings.ToUpper(token)} {
			_, err = natsauth.HashToken(natsauth.TokenPersonal, text)
			require.ErrorIs(t, err, natsauth.ErrMalformedToken, text)
			require.NotContains(t, err.Error(), token[len("lsp_"):20], "an error must not quote a token")
		}
	}

	ofRunner, err := routable.New(routable.Runner, routable.Payload{})
	require.NoError(t, err)
	_, err = natsauth.HashToken(natsauth.TokenPersonal, ofRunner)
	require.ErrorIs(t, err, natsauth.ErrMalformedToken)
	_, err = natsauth.NewPersonalToken("not a cell", 1)
	require.ErrorIs(t, err, routable.ErrInvalidPayload)
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
	f.Add(natsauth.NewToken(natsauth.TokenPersonal))
	if personal, err := natsauth.NewPersonalToken("local", 7); err == nil {
		f.Add(personal)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []natsauth.TokenKind{natsauth.TokenAgent, natsauth.TokenPersonal} {
			if _, err := natsauth.HashToken(kind, text); err == nil {
				require.Regexp(t, "^"+natsauth.TokenPattern+"$", text)
			}
		}
	})
}
