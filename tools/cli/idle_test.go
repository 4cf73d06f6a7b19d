package cli

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// idleFixture is an API with one workspace.
type idleFixture struct {
	statev1connect.UnimplementedWorkspaceServiceHandler
	statev1connect.UnimplementedWorkspaceAccessServiceHandler

	workspace *statev1.Workspace
	extended  time.Duration
}

func (f *idleFixture) GetWorkspace(
	context.Context, *connect.Request[statev1.GetWorkspaceRequest],
) (*connect.Response[statev1.GetWorkspaceResponse], error) {
	return connect.NewResponse(&statev1.GetWorkspaceResponse{Workspace: f.workspace}), nil
}

func (f *idleFixture) ExtendWorkspace(
	_ context.Context, r *connect.Request[statev1.ExtendWorkspaceRequest],
) (*connect.Response[statev1.ExtendWorkspaceResponse], error) {
	f.extended = r.Msg.GetDuration().AsDuration()
	return connect.NewResponse(&statev1.ExtendWorkspaceResponse{Workspace: f.workspace}), nil
}

func TestWorkspaceShowsSharesAndWhyItIsKeptAlive(t *testing.T) {
	t.Parallel()
	stops := time.Date(2026, 3, 4, 12, 0, 0, 0, time.Local)
	f := &idleFixture{workspace: &statev1.Workspace{
		Id: "1", Name: "hello", CreatedAt: timestamppb.Now(), LastActivityAt: timestamppb.New(time.Now().Add(-time.Hour)),
		IdleStopsAt: timestamppb.New(stops), KeptAliveBecause: "its owner was active at noon",
		Shares: []*statev1.WorkspaceShare{{UserId: 5, Port: 3000}, {UserId: 6}},
	}}
	faults := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)))
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewWorkspaceServiceHandler(f, faults))
	mux.Handle(statev1connect.NewWorkspaceAccessServiceHandler(f, faults))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("x"), 0o600))
	run := func(args ...string) string {
		var out, errs strings.Builder
		args = append([]string{
			"--client", filepath.Join(t.TempDir(), "client.yaml"), "--server", server.URL, "--token-file", token,
		}, args...)
		require.Zero(t, Run(t.Context(), args, &out, &errs, "test"), "%s", &errs)
		return out.String()
	}

	shown := run("ws", "get", "hello")
	require.Regexp(t, `(?m)^shared with +5 \(3000\), 6 \(everything\)$`, shown)
	for _, out := range []string{shown, run("ws", "extend", "hello", "--for", "8h")} {
		require.Regexp(t, `(?m)^last activity +60m ago$`, out)
		require.Regexp(t, `(?m)^stops if idle +2026-03-04 12:00:00$`, out)
		require.Regexp(t, `(?m)^kept alive +because its owner was active at noon$`, out)
	}
	require.Equal(t, 8*time.Hour, f.extended)

	f.workspace = &statev1.Workspace{Id: "1", Name: "hello", CreatedAt: timestamppb.Now()}
	shown = run("ws", "get", "hello")
	require.Regexp(t, `(?m)^shared with +nobody$`, shown)
	require.Regexp(t, `(?m)^last activity +never$`, shown)
	require.Regexp(t, `(?m)^stops if idle +never$`, shown)
	require.NotContains(t, shown, "kept alive")
}
