package security_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// revokedAgent is one whose credentials were real once.
func (s *isolationScenario) revokedAgent() natsauth.AgentCredentials {
	s.T.Helper()
	api, err := s.Client()
	require.NoError(s.T, err)
	credentials, _, err := stack.RegisterAgent(s.T.Context(), api, s.NewProject("revoked"), "revoked")
	require.NoError(s.T, err)
	conn, err := connectAgent(credentials)
	require.NoError(s.T, err, "it could connect")
	conn.Close()
	_, err = s.API.Agents.RevokeAgent(s.T.Context(),
		connect.NewRequest(&statev1.RevokeAgentRequest{Id: credentials.AgentID}))
	require.NoError(s.T, err)
	awaitOutboxEmpty(s.System)
	return credentials
}

func seed(s *fixture.System, principal string) []byte {
	s.T.Helper()
	raw, err := os.ReadFile(natsauth.SeedFile(filepath.Join(s.Dir(), "nats"), principal))
	require.NoError(s.T, err)
	seed, err := nkeys.ParseDecoratedNKey(raw)
	require.NoError(s.T, err)
	plain, err := seed.Seed()
	require.NoError(s.T, err)
	return plain
}

func personalToken(s *fixture.System) string {
	s.T.Helper()
	token, err := s.AdminToken()
	require.NoError(s.T, err)
	return token
}

func publicOf(t testing.TB, key nkeys.KeyPair) string {
	t.Helper()
	public, err := key.PublicKey()
	require.NoError(t, err)
	return public
}

// forgedUser is a user of the control plane with all permissions, signed by an unknown account.
func forgedUser(t testing.TB, issuer, user nkeys.KeyPair) string {
	t.Helper()
	claims := jwt.NewUserClaims(publicOf(t, user))
	claims.Name, claims.Audience, claims.Expires = natsauth.PrincipalState, "CONTROL", time.Now().Add(time.Hour).Unix()
	token, err := claims.Encode(issuer)
	require.NoError(t, err)
	return token
}
