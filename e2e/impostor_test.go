package e2e_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// revokedAgent is one whose credentials were real once.
func (s *scene) revokedAgent() natsauth.AgentCredentials {
	s.t.Helper()
	api, err := s.Client()
	require.NoError(s.t, err)
	credentials, _, err := stack.RegisterAgent(s.t.Context(), api, s.newProject("revoked"), "revoked")
	require.NoError(s.t, err)
	conn, err := connectAgent(credentials)
	require.NoError(s.t, err, "it could connect")
	conn.Close()
	_, err = s.api.Agents.RevokeAgent(s.t.Context(), connect.NewRequest(&statev1.RevokeAgentRequest{Id: credentials.AgentID}))
	require.NoError(s.t, err)
	s.awaitTold()
	return credentials
}

func (s *system) seed(principal string) []byte {
	s.t.Helper()
	raw, err := os.ReadFile(natsauth.SeedFile(filepath.Join(s.Dir(), "nats"), principal))
	require.NoError(s.t, err)
	seed, err := nkeys.ParseDecoratedNKey(raw)
	require.NoError(s.t, err)
	plain, err := seed.Seed()
	require.NoError(s.t, err)
	return plain
}

func (s *system) personalToken() string {
	s.t.Helper()
	token, err := s.AdminToken()
	require.NoError(s.t, err)
	return token
}

func publicOf(t *testing.T, key nkeys.KeyPair) string {
	t.Helper()
	public, err := key.PublicKey()
	require.NoError(t, err)
	return public
}

// forgedUser is a user of the control plane with all permissions, signed by somebody whom nobody knows.
func forgedUser(t *testing.T, issuer, user nkeys.KeyPair) string {
	t.Helper()
	claims := jwt.NewUserClaims(publicOf(t, user))
	claims.Name, claims.Audience, claims.Expires = natsauth.PrincipalState, "CONTROL", time.Now().Add(time.Hour).Unix()
	token, err := claims.Encode(issuer)
	require.NoError(t, err)
	return token
}
