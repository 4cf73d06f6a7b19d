package forward_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/services/relay/policy"
)

func TestRequestWaitsAsLongAsItsCaller(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
	for name, c := range map[string]struct {
		path   string
		header http.Header
		want   time.Duration // 0: no deadline
	}{
		"kubectl --request-timeout":    {"/kubernetes/api/v1/pods?timeout=5s", nil, 4 * time.Second},
		"longer than the default":      {"/kubernetes/api/v1/pods?timeout=1h", nil, time.Hour - 2*time.Second},
		"kubectl without a time-out":   {"/kubernetes/api/v1/pods", nil, 0},
		"invalid time-out":             {"/kubernetes/api/v1/pods?timeout=soon", nil, 0},
		"negative time-out":            {"/kubernetes/api/v1/pods?timeout=-5s", nil, 0},
		"preference":                   {"/http/shop/", http.Header{"Prefer": {"respond-async, wait=50"}}, 48 * time.Second},
		"the query is for the target":  {"/http/shop/?timeout=5s", nil, 0},
		"invalid preference of a wait": {"/http/shop/", http.Header{"Prefer": {"wait=soon"}}, 0},
	} {
		before := time.Now()
		response, body := f.request(developer, http.MethodGet, "/agents/7"+c.path, c.header)
		require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", name, body)
		if deadline := *f.deadline.Load(); c.want == 0 {
			require.Zero(t, deadline, name)
		} else {
			require.WithinRange(t, deadline, before.Add(c.want), time.Now().Add(c.want), name)
		}
		f.transport.Evict(f.connections.Load()) // the next request opens a stream
	}
	before := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), before.Add(time.Hour))
	defer cancel()
	err := f.handler.Get(ctx, policy.Caller{UserID: reader, Scope: access.ScopeRead}, agentID, 0, "/api/v1/pods", "",
		func(*http.Response) error { return nil })
	require.NoError(t, err)
	require.WithinRange(t, *f.deadline.Load(), before.Add(59*time.Minute), before.Add(time.Hour-time.Second))
}
