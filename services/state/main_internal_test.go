package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAgentsGetEachAddressOfNATS(t *testing.T) {
	t.Parallel()
	var p process
	p.cfg.NATS.URL = "tls://nats-0:4222, tls://nats-1:4223"
	endpoint, err := p.endpoint()
	require.NoError(t, err)
	require.Equal(t, []string{"tls://nats-0:4222", "tls://nats-1:4223"}, endpoint.URLs)

	p.cfg.Agents.URLs = []string{"tls://nats.example"}
	endpoint, err = p.endpoint()
	require.NoError(t, err)
	require.Equal(t, []string{"tls://nats.example"}, endpoint.URLs)
}
