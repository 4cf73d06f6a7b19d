package s3d_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/s3d"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestServerRefusesRequestsWithoutKey(t *testing.T) {
	t.Parallel()
	server, err := s3d.Start(t.Context(), t.TempDir())
	if errors.Is(err, s3d.ErrMissing) {
		t.Skip("not shown: ", err)
	}
	require.NoError(t, err)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	response, err := client.Get(server.URL + "/")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	require.NoError(t, server.Stop())
	_, err = client.Get(server.URL + "/")
	require.Error(t, err)
}
