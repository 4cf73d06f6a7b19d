package e2e_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// Images, as the cluster takes them.
const (
	goodImage      = "registry.example/ide:1"
	otherGoodImage = "registry.example/ide:2"
	missingImage   = "registry.example/missing:1"
	crashingImage  = "registry.example/crash-loop:1"
)

// retryPause is between attempts to reach a service that is being restarted.
const retryPause = 100 * time.Millisecond

// workspace is one of the test's.
type workspace struct {
	t *testing.T
	s *system

	id, name, namespace string
	project, agent      int64
}

// create asks for a workspace of the image with a port.
func (s *system) create(name, image string) *workspace {
	s.t.Helper()
	return s.createAs(&statev1.CreateWorkspaceRequest{
		Name: name, Overrides: &statev1.WorkspaceOverrides{Image: image, Ports: []*statev1.Port{{Name: "web", Number: 8080}}},
	})
}

// createAs asks for a workspace; the system's project and agent are those of the first agent unless they are given.
func (s *system) createAs(request *statev1.CreateWorkspaceRequest) *workspace {
	s.t.Helper()
	if request.GetProjectId() == 0 {
		request.ProjectId, request.AgentId = s.project, s.agent
	}
	response, err := s.api.Workspaces.CreateWorkspace(s.t.Context(), connect.NewRequest(request))
	require.NoError(s.t, err)
	made := response.Msg.GetWorkspace()
	return &workspace{
		t: s.t, s: s, id: made.GetId(), name: made.GetName(), namespace: made.GetNamespace(), project: made.GetProjectId(), agent: made.GetAgentId(),
	}
}

// createRunning creates a workspace and returns when it is Running.
func (s *system) createRunning(name string) *workspace {
	s.t.Helper()
	w := s.create(name, goodImage)
	w.untilRunning()
	return w
}

// in is the workspace for a subtest.
func (w *workspace) in(t *testing.T) *workspace {
	t.Helper()
	here := *w
	here.t = t
	return &here
}

func (w *workspace) reference() *statev1.WorkspaceReference {
	return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: w.id}}
}

func (w *workspace) tryDesire(state statev1.DesiredState) (*statev1.Workspace, error) {
	response, err := w.s.api.Workspaces.SetDesiredState(w.t.Context(), connect.NewRequest(&statev1.SetDesiredStateRequest{Workspace: w.reference(), DesiredState: state}))
	if err != nil {
		return nil, err
	}
	return response.Msg.GetWorkspace(), nil
}

func (w *workspace) desire(state statev1.DesiredState) *statev1.Workspace {
	w.t.Helper()
	changed, err := w.tryDesire(state)
	require.NoError(w.t, err)
	return changed
}

func (w *workspace) start() *statev1.Workspace {
	w.t.Helper()
	return w.desire(statev1.DesiredState_DESIRED_STATE_RUNNING)
}

func (w *workspace) stop() *statev1.Workspace {
	w.t.Helper()
	return w.desire(statev1.DesiredState_DESIRED_STATE_STOPPED)
}

func (w *workspace) restart() *statev1.Workspace {
	w.t.Helper()
	return w.desire(statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED)
}

func (w *workspace) terminate() *statev1.Workspace {
	w.t.Helper()
	return w.desire(statev1.DesiredState_DESIRED_STATE_TERMINATED)
}

func (w *workspace) update(overrides *statev1.WorkspaceOverrides) {
	w.t.Helper()
	_, err := w.s.api.Workspaces.UpdateWorkspace(w.t.Context(), connect.NewRequest(&statev1.UpdateWorkspaceRequest{Workspace: w.reference(), Overrides: overrides}))
	require.NoError(w.t, err)
}

func (w *workspace) get() *statev1.Workspace {
	w.t.Helper()
	response, err := w.s.api.Workspaces.GetWorkspace(w.t.Context(), connect.NewRequest(&statev1.GetWorkspaceRequest{Workspace: w.reference()}))
	require.NoError(w.t, err)
	return response.Msg.GetWorkspace()
}

func (w *workspace) untilRunning() *statev1.Workspace {
	w.t.Helper()
	return w.until("Running", settled(statev1.ActualState_ACTUAL_STATE_RUNNING))
}

func (w *workspace) untilStopped() {
	w.t.Helper()
	w.until("Stopped", settled(statev1.ActualState_ACTUAL_STATE_STOPPED))
}

func (w *workspace) untilFailed(reason string) *statev1.Workspace {
	w.t.Helper()
	return w.until("Failed: "+reason, func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_FAILED && now.GetReason() == reason
	})
}

func (w *workspace) untilError(reason string) *statev1.Workspace {
	w.t.Helper()
	return w.until("Error: "+reason, func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_ERROR && now.GetReason() == reason
	})
}

func (w *workspace) untilTerminated() {
	w.t.Helper()
	w.until("Terminated", settled(statev1.ActualState_ACTUAL_STATE_TERMINATED))
}

// settled is to be in a state with everything applied that is desired.
func settled(state statev1.ActualState) func(*statev1.Workspace) bool {
	return func(w *statev1.Workspace) bool {
		return w.GetActualState() == state && w.GetAppliedRevision() == w.GetDesiredRevision()
	}
}

// until watches the workspace until it is as wanted. It watches again where the watch ended because the service was stopped.
func (w *workspace) until(wanted string, is func(*statev1.Workspace) bool) *statev1.Workspace {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	found, err := w.s.await(ctx, w.s.api, w.reference(), is)
	if err != nil {
		require.FailNow(w.t, "workspace "+w.name+" did not become "+wanted, "%v\nlast seen: %v\n%s", err, found, w.story())
	}
	return found
}

// await follows a workspace until it is as wanted, and gives it as it was seen last.
func (*system) await(ctx context.Context, api *client.API, workspace *statev1.WorkspaceReference, is func(*statev1.Workspace) bool) (*statev1.Workspace, error) {
	var last *statev1.Workspace
	watch := func() (struct{}, error) {
		stream, err := api.Workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{
			Filter: &statev1.WorkspaceFilter{Workspaces: []*statev1.WorkspaceReference{workspace}},
		}))
		if err == nil {
			defer stream.Close()
			for stream.Receive() {
				if last = stream.Msg().GetWorkspace(); is(last) {
					return struct{}{}, nil
				}
			}
			err = stream.Err()
		}
		if err == nil || fault.Is(err, errcode.Unavailable) {
			return struct{}{}, fault.New(errcode.Unavailable, "the watch has ended: %v", err)
		}
		return struct{}{}, backoff.Permanent(err)
	}
	_, err := backoff.Retry(ctx, watch, backoff.WithBackOff(backoff.NewConstantBackOff(retryPause)), backoff.WithMaxElapsedTime(0))
	return last, err
}
