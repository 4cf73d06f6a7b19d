package recovery_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestReplicasAreReadyAfterAnOutageOfPostgreSQL stops PostgreSQL until the consumers of two replicas have failed.
func TestReplicasAreReadyAfterAnOutageOfPostgreSQL(t *testing.T) {
	t.Parallel()
	s := fixture.StartWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}})
	replicas := []string{
		stack.State, stack.Deploys, addReplica(s, stack.State), addReplica(s, stack.Deploys),
	}
	s.Database().Kill()
	for _, replica := range replicas {
		awaitReadiness(s, replica, func(status int, text string) bool {
			return status != http.StatusOK && strings.Contains(text, "has been failing for")
		})
	}
	require.NoError(t, s.Database().Restart(t.Context()))
	for _, replica := range replicas {
		awaitReadiness(s, replica, func(status int, _ string) bool { return status == http.StatusOK })
	}
}

// awaitReadiness waits until the response of /readyz of a replica matches.
func awaitReadiness(s *fixture.System, replica string, matches func(status int, text string) bool) {
	s.T.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	url := "http://" + s.Address(replica, stack.ListenerOps) + "/readyz"
	fixture.AwaitCluster(s.T, "readiness of "+replica, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		response, err := client.Do(request)
		if err != nil {
			return false, err
		}
		body, err := io.ReadAll(response.Body)
		return matches(response.StatusCode, string(body)), errors.Join(err, response.Body.Close())
	})
}
