package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/auth"
)

func TestTokenOfAServiceIsAcceptedByRelaysWithTheSecret(t *testing.T) {
	t.Parallel()
	const secret = "a secret of more than thirty-two bytes"
	file := filepath.Join(t.TempDir(), "external.secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	var out, errs strings.Builder
	arguments := []string{"relay", "token", "--secret-file", file, "--subject", "gateway"}
	require.Zero(t, Run(t.Context(), arguments, &out, &errs, "test"), errs.String())
	verifier, err := auth.NewVerifier(auth.Config{
		Issuer: "lockstep", Audience: "relay", Secrets: [][]byte{[]byte(secret)},
	})
	require.NoError(t, err)
	caller, err := verifier.Verify(strings.TrimSpace(out.String()))
	require.NoError(t, err)
	require.Equal(t, "gateway", caller.Subject)

	require.NoError(t, os.WriteFile(file, []byte("short"), 0o600))
	for _, wrong := range [][]string{
		arguments,
		{"relay", "token", "--subject", "gateway"},
		{"relay", "token", "--secret-file", file},
		append(arguments, "--lifetime", "0s"),
	} {
		require.NotZero(t, Run(t.Context(), wrong, io.Discard, io.Discard, "test"), wrong)
	}
}
