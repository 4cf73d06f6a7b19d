package cli

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/tools/client"
)

// fakeWorkspaces answers each change with a workspace, and watches with its later states.
type fakeWorkspaces struct {
	statev1connect.UnimplementedWorkspaceServiceHandler

	answer *statev1.Workspace
	states []*statev1.Workspace
	// changes are the desired states that were requested.
	changes []statev1.DesiredState
}

func (f *fakeWorkspaces) CreateWorkspace(
	context.Context, *connect.Request[statev1.CreateWorkspaceRequest],
) (*connect.Response[statev1.CreateWorkspaceResponse], error) {
	return connect.NewResponse(&statev1.CreateWorkspaceResponse{Workspace: f.answer}), nil
}

func (f *fakeWorkspaces) GetWorkspace(
	context.Context, *connect.Request[statev1.GetWorkspaceRequest],
) (*connect.Response[statev1.GetWorkspaceResponse], error) {
	return connect.NewResponse(&statev1.GetWorkspaceResponse{Workspace: f.answer}), nil
}

func (f *fakeWorkspaces) SetDesiredState(
	_ context.Context, r *connect.Request[statev1.SetDesiredStateRequest],
) (*connect.Response[statev1.SetDesiredStateResponse], error) {
	f.changes = append(f.changes, r.Msg.GetDesiredState())
	return connect.NewResponse(&statev1.SetDesiredStateResponse{Workspace: f.answer}), nil
}

func (f *fakeWorkspaces) WatchWorkspaces(
	ctx context.Context, _ *connect.Request[statev1.WatchWorkspacesRequest],
	stream *connect.ServerStream[statev1.WatchWorkspacesResponse],
) error {
	for _, w := range f.states {
		if err := stream.Send(&statev1.WatchWorkspacesResponse{Workspace: w}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// serve returns the flags that select the fake.
func (f *fakeWorkspaces) serve(t *testing.T) []string {
	t.Helper()
	_, handler := statev1connect.NewWorkspaceServiceHandler(f,
		connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler))))
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("t\n"), 0o600))
	return []string{"--server", server.URL, "--token-file", token}
}

// at returns a workspace in a state that it entered at second changed, with its last revision applied.
func at(
	desired statev1.DesiredState, actual statev1.ActualState, changed int64, more ...func(*statev1.Workspace),
) *statev1.Workspace {
	w := &statev1.Workspace{
		Id: "01936f5e-8f3a-7c55-9b1c-0242ac120002", Name: "mine", DesiredState: desired, ActualState: actual,
		ActualStateChangedAt: timestamppb.New(time.Unix(changed, 0)), DesiredRevision: 2, AppliedRevision: 2,
	}
	for _, change := range more {
		change(w)
	}
	return w
}

const (
	toRun       = statev1.DesiredState_DESIRED_STATE_RUNNING
	toStop      = statev1.DesiredState_DESIRED_STATE_STOPPED
	toRestart   = statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED
	toTerminate = statev1.DesiredState_DESIRED_STATE_TERMINATED
	requested   = statev1.ActualState_ACTUAL_STATE_CREATION_REQUESTED
	starting    = statev1.ActualState_ACTUAL_STATE_STARTING
	running     = statev1.ActualState_ACTUAL_STATE_RUNNING
	stopped     = statev1.ActualState_ACTUAL_STATE_STOPPED
	failed      = statev1.ActualState_ACTUAL_STATE_FAILED
	terminating = statev1.ActualState_ACTUAL_STATE_TERMINATING
	applyError  = statev1.ActualState_ACTUAL_STATE_ERROR
	terminated  = statev1.ActualState_ACTUAL_STATE_TERMINATED
)

func unapplied(w *statev1.Workspace) { w.AppliedRevision = 1 }

// stale marks a workspace whose agent has been silent for five minutes.
func stale(w *statev1.Workspace) { w.StaleSince = timestamppb.New(time.Now().Add(-5 * time.Minute)) }

func because(reason, message string) func(w *statev1.Workspace) {
	return func(w *statev1.Workspace) { w.Reason, w.Message = reason, message }
}

func TestWaitEndsWithTheResultAndItsExitCode(t *testing.T) {
	t.Parallel()
	noImage := because("ErrImagePull", "image i:1 cannot be pulled: not found")
	for name, test := range map[string]struct {
		command []string
		answer  *statev1.Workspace
		states  []*statev1.Workspace
		code    int
		want    string
	}{
		"create, Running": {
			[]string{"create", "mine"},
			at(toRun, requested, 1, unapplied),
			[]*statev1.Workspace{at(toRun, starting, 2), at(toRun, running, 3)},
			0, "",
		},
		"create, Failed": {
			[]string{"create", "mine"},
			at(toRun, requested, 1, unapplied),
			[]*statev1.Workspace{at(toRun, starting, 2), at(toRun, failed, 3, noImage)},
			8,
			`lockstep: workspace "mine" is Failed: image i:1 cannot be pulled: not found (ErrImagePull)`,
		},
		"create, Error": {
			[]string{"create", "mine"},
			at(toRun, requested, 1, unapplied),
			[]*statev1.Workspace{at(toRun, applyError, 2, unapplied, because("Forbidden", "no"))},
			8,
			`workspace "mine" is Error: no (Forbidden)`,
		},
		"create, too long": {
			[]string{"create", "mine", "--timeout", "3s"},
			at(toRun, requested, 1, unapplied),
			[]*statev1.Workspace{at(toRun, starting, 2, because("Unschedulable", "no node"))},
			14,
			`workspace "mine" is not Running after 3s, it is Starting: no node (Unschedulable)`,
		},
		"create, the agent is silent": {
			[]string{"create", "mine", "--timeout", "3s"},
			at(toRun, requested, 1, unapplied),
			[]*statev1.Workspace{at(toRun, requested, 1, unapplied, stale)},
			14,
			`is not Running after 3s, it is CreationRequested (stale for 5m)`,
		},
		"create, somebody stops it": {
			[]string{"create", "mine"},
			at(toRun, requested, 1, unapplied),
			[]*statev1.Workspace{at(toRun, starting, 2), at(toStop, starting, 2)},
			7, "another desired state now: Stopped",
		},
		"stop": {
			[]string{"stop", "mine"},
			at(toStop, running, 1, unapplied),
			[]*statev1.Workspace{at(toStop, running, 1, unapplied), at(toStop, stopped, 2)},
			0, "",
		},
		"start, Running already": {
			[]string{"start", "mine"},
			at(toRun, running, 1),
			[]*statev1.Workspace{at(toRun, running, 1)},
			0, "",
		},
		"restart, not before the start": {
			[]string{"restart", "mine", "--timeout", "3s"},
			at(toRestart, running, 1, unapplied),
			[]*statev1.Workspace{at(toRestart, stopped, 2), at(toRun, stopped, 2, unapplied)},
			14, "is not Running",
		},
		"restart": {
			[]string{"restart", "mine"},
			at(toRestart, running, 1, unapplied),
			[]*statev1.Workspace{at(toRestart, stopped, 2), at(toRun, running, 3)},
			0, "",
		},
		"delete": {
			[]string{"delete", "mine", "--yes"},
			at(toTerminate, failed, 1, unapplied),
			[]*statev1.Workspace{at(toTerminate, failed, 1, unapplied), at(toTerminate, terminated, 2)},
			0, "",
		},
		"delete, Error": {
			[]string{"delete", "mine", "--yes"},
			at(toTerminate, running, 1, unapplied),
			[]*statev1.Workspace{at(toTerminate, applyError, 2, unapplied, because("Forbidden", "no"))},
			8, "is Error: no",
		},
		"a limit without --wait": {
			[]string{"stop", "mine", "--wait=false", "--timeout", "1s"},
			nil, nil, 2,
			"--timeout needs --wait",
		},
		"a negative limit": {[]string{"stop", "mine", "--timeout", "-1s"}, nil, nil, 2, "must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeWorkspaces{answer: test.answer, states: test.states}
			args := append(append(f.serve(t), "ws", test.command[0], "--wait"), test.command[1:]...)
			code, _, stderr := run(t, args...)
			require.Equal(t, test.code, code, stderr)
			require.Contains(t, stderr, test.want)
		})
	}
}

func TestWaitForADeletionShowsEachReasonWhyObjectsRemain(t *testing.T) {
	t.Parallel()
	remains := func(message string) *statev1.Workspace {
		return at(toTerminate, terminating, 2, unapplied, because("FinalizersRemain", message))
	}
	f := &fakeWorkspaces{
		answer: at(toTerminate, running, 1, unapplied),
		states: []*statev1.Workspace{
			remains("ConfigMap a waits"), remains("ConfigMap a waits"), remains("Secret b waits"),
			at(toTerminate, terminated, 3),
		},
	}
	code, stdout, stderr := run(t, append(f.serve(t), "ws", "delete", "mine", "--yes", "--wait")...)
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 3)
	for i, text := range []string{"Terminating .*ConfigMap a waits$", "Terminating .*Secret b waits$", "Terminated$"} {
		require.Regexp(t, text, lines[i])
	}
}

// TestWaitIgnoresStatesFromBeforeTheChange updates a workspace: its state may be the old one until the cluster reports
// the change. It is the result only if it stands.
func TestWaitIgnoresStatesFromBeforeTheChange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before *statev1.Workspace
		states []*statev1.Workspace
		code   int
	}{
		"Failed, then repaired": {
			at(toRun, failed, 1, unapplied),
			[]*statev1.Workspace{at(toRun, failed, 1), at(toRun, starting, 2), at(toRun, running, 3)},
			0,
		},
		"Failed again": {
			at(toRun, failed, 1, unapplied),
			[]*statev1.Workspace{at(toRun, failed, 1), at(toRun, failed, 3)},
			8,
		},
		"Running, then Failed": {
			at(toRun, running, 1, unapplied),
			[]*statev1.Workspace{at(toRun, running, 1), at(toRun, starting, 2), at(toRun, failed, 3)},
			8,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result := &waitResult{before: test.before, last: test.before}
			for i, w := range test.states {
				end, final := result.take(w)
				require.Equal(t, i == len(test.states)-1, final, "state %d: %v", i, end)
				if final && test.code == 0 {
					require.ErrorIs(t, end, errDone)
				} else if final {
					require.Equal(t, test.code, fault.ExitCode(end))
				}
			}
		})
	}

	f := &fakeWorkspaces{states: []*statev1.Workspace{at(toRun, running, 1)}}
	flags := f.serve(t)
	a := &app{stdout: io.Discard, stderr: io.Discard, output: outputTable}
	api := client.New(http.DefaultClient, flags[1], "t")
	stands := &waitResult{before: at(toRun, running, 1, unapplied), standsFor: time.Millisecond}
	require.NoError(t, a.waitFor(t.Context(), api, stands, time.Minute), "a state that stands is the result")
	f.states[0] = at(toRun, failed, 1, because("CrashLoopBackOff", "it crashes"))
	stands.before = at(toRun, failed, 1, unapplied)
	err := a.waitFor(t.Context(), api, stands, time.Minute)
	require.True(t, fault.Is(err, errcode.FailedPrecondition), "%v", err)
	require.ErrorContains(t, err, "it crashes")
}

func TestDeleteAsksForConfirmation(t *testing.T) {
	t.Parallel()
	f := &fakeWorkspaces{answer: at(toTerminate, running, 1, unapplied)}
	flags := f.serve(t)
	code, _, stderr := run(t, append(flags, "ws", "delete", "mine")...)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, `not confirmed, nothing changed: This deletes workspace "mine" and its volume permanently. `+
		"There is no terminal to ask: confirm it with --yes")
	require.Empty(t, f.changes)
	code, _, stderr = run(t, append(flags, "ws", "delete", "mine", "--yes")...)
	require.Zero(t, code, stderr)
	require.Equal(t, []statev1.DesiredState{toTerminate}, f.changes)

	a := &app{stderr: io.Discard}
	for typed, confirmed := range map[string]bool{"mine\n": true, "mine": true, "yours\n": false, "": false} {
		c := &cobra.Command{}
		c.SetIn(strings.NewReader(typed))
		err := a.confirm(c, "This deletes it.", "mine")
		require.Equal(t, confirmed, err == nil, "%q: %v", typed, err)
	}
}
