package cli

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// storedWorkspaces streams its workspaces, and then nothing.
type storedWorkspaces struct {
	statev1connect.UnimplementedWorkspaceServiceHandler

	mu     sync.Mutex
	stored []*statev1.Workspace
	// aborts and refusals are the numbers of next requests that are not answered, and of next watches that fail.
	aborts, refusals int
}

// next reports whether one is left, and takes it.
func (f *storedWorkspaces) next(left *int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	*left--
	return *left >= 0
}

func (f *storedWorkspaces) store(workspaces ...*statev1.Workspace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stored = workspaces
}

func (f *storedWorkspaces) GetWorkspace(
	_ context.Context, r *connect.Request[statev1.GetWorkspaceRequest],
) (*connect.Response[statev1.GetWorkspaceResponse], error) {
	return nil, fault.ToConnect(
		fault.New(errcode.NotFound, "workspace %q does not exist", r.Msg.GetWorkspace().GetName()))
}

func (f *storedWorkspaces) WatchWorkspaces(
	ctx context.Context, r *connect.Request[statev1.WatchWorkspacesRequest],
	stream *connect.ServerStream[statev1.WatchWorkspacesResponse],
) error {
	if f.next(&f.refusals) {
		return connect.NewError(connect.CodeUnavailable, errors.New("not ready"))
	}
	f.mu.Lock()
	stored := f.stored
	f.mu.Unlock()
	for _, w := range stored {
		if w.GetActualState() == statev1.ActualState_ACTUAL_STATE_TERMINATED && !r.Msg.GetFilter().GetIncludeTerminated() {
			continue
		}
		if err := stream.Send(&statev1.WatchWorkspacesResponse{Workspace: w, Initial: true}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// newFakeState returns the flags of a command line for the server.
func newFakeState(t *testing.T, workspaces *storedWorkspaces) (*httptest.Server, []string) {
	t.Helper()
	_, handler := statev1connect.NewWorkspaceServiceHandler(workspaces)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if workspaces.next(&workspaces.aborts) {
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(personal+"\n"), 0o600))
	return server, []string{"--client", token + ".none", "--server", server.URL, "--token-file", token}
}

func TestWorkspaceWatchContinuesWithAnotherConnection(t *testing.T) {
	t.Parallel()
	at := func(name string, state statev1.ActualState, created time.Time) *statev1.Workspace {
		return &statev1.Workspace{
			Id: name, Name: name, ActualState: state, DesiredState: statev1.DesiredState_DESIRED_STATE_RUNNING,
			CreatedAt: timestamppb.New(created),
		}
	}
	old := time.Now().Add(-time.Hour)
	for _, format := range []string{"table", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			service := &storedWorkspaces{}
			service.store(at("same", running, old), at("finished", running, old), at("before", terminated, old))
			server, flags := newFakeState(t, service)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var out, notes output
			done := make(chan int, 1)
			go func() { done <- Run(ctx, append(flags, "-o", format, "ws", "watch"), &out, &notes, "test") }()
			await := func(from *output, text string) {
				t.Helper()
				require.Eventually(t, func() bool { return strings.Contains(from.String(), text) }, processTimeout,
					time.Millisecond, "%s", text)
			}
			await(&out, "finished")
			service.store(at("same", running, old), at("finished", terminated, old), at("before", terminated, old),
				at("short", terminated, time.Now().Add(time.Second)))
			service.mu.Lock()
			service.aborts, service.refusals = 2, 2
			service.mu.Unlock()
			server.CloseClientConnections()
			await(&out, "short")
			cancel()
			require.Zero(t, <-done)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			require.Len(t, lines, 4)
			for i, name := range []string{"same", "finished", "finished", "short"} {
				require.Contains(t, lines[i], name)
			}
			require.Equal(t, "lost the server; connecting again\nconnected to the server again\n", notes.String())
		})
	}
}

func TestWatchOfUnknownWorkspaceFails(t *testing.T) {
	t.Parallel()
	_, flags := newFakeState(t, &storedWorkspaces{})
	var out, notes output
	require.Equal(t, 5, Run(t.Context(), append(flags, "ws", "watch", "nope"), &out, &notes, "test"))
	require.Equal(t, "lockstep: workspace \"nope\" does not exist\n", notes.String())
}
