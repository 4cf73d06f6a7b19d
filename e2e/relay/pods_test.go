package relay_test

import (
	"context"
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/certpool"
	relayv1 "lockstep.internal/schemas/gen/lockstep/relay/v1"
	"lockstep.internal/schemas/gen/lockstep/relay/v1/relayv1connect"
	"lockstep.internal/tools/client"
)

// grpcClient returns a gRPC client of the relay for the administrator.
func grpcClient(s *fixture.System) relayv1connect.RelayServiceClient {
	s.T.Helper()
	roots, err := certpool.Load(s.RelayCAFile())
	require.NoError(s.T, err)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}
	s.T.Cleanup(transport.CloseIdleConnections)
	return relayv1connect.NewRelayServiceClient(&http.Client{Transport: transport}, s.RelayURL(), connect.WithGRPC(),
		s.API.ClientOption(client.RelayAudience))
}

func TestGetPodsReturnsRunningPods(t *testing.T) {
	s := shared.Parallel(t)
	ctx := t.Context()
	pods := s.Kube.CoreV1().Pods("default")
	for name, selector := range map[string]map[string]string{
		"get-pods-running": nil, "get-pods-pending": {"no-node": "has-this-label"},
	} {
		_, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}, NodeSelector: selector,
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	fixture.AwaitCluster(t, "the pod runs", func(ctx context.Context) (bool, error) {
		found, err := pods.Get(ctx, "get-pods-running", metav1.GetOptions{})
		return err == nil && found.Status.Phase == corev1.PodRunning, err
	})
	response, err := grpcClient(s).GetPods(ctx, connect.NewRequest(&relayv1.GetPodsRequest{AgentId: s.AgentID}))
	require.NoError(t, err)
	found := map[string]bool{}
	for _, pod := range response.Msg.GetPods() {
		found[pod.GetName()] = true
	}
	require.True(t, found["get-pods-running"])
	require.False(t, found["get-pods-pending"])
}

func TestGetPodsWaitsUntilTheDeadlineOfItsCaller(t *testing.T) {
	s := shared.Parallel(t)
	relay := grpcClient(s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := relay.GetPods(ctx, connect.NewRequest(&relayv1.GetPodsRequest{AgentId: s.AgentID, ConnectionId: 1}))
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err))
	require.ErrorContains(t, err, "is not connected; the request waited for")
}
