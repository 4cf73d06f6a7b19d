package security_test

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
)

func TestSecretsFoundInEveryEncoding(t *testing.T) {
	t.Parallel()
	s := &fixture.Secrets{}
	value := s.New()
	for name, content := range map[string][]byte{
		"as it is":       []byte("x" + value + "x"),
		"hex":            []byte(hex.EncodeToString([]byte("x" + value))),
		"url":            []byte("/?v=" + url.QueryEscape("a b"+value)),
		"base64":         []byte(base64.StdEncoding.EncodeToString([]byte(value))),
		"base64 within":  []byte(base64.URLEncoding.EncodeToString([]byte(`{"value":"` + value + `"}`))),
		"base64 one off": []byte(base64.StdEncoding.EncodeToString([]byte("x" + value + "xx"))),
		"base64 two off": []byte(base64.StdEncoding.EncodeToString([]byte("xx" + value + "x"))),
	} {
		require.Equal(t, []string{value}, s.FindIn(content), name)
	}
	require.Empty(t, s.FindIn([]byte("secret-value-"+uuid.NewString())))
}
