package scale_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// callers is the number of concurrent API calls.
const callers = 16

// workspaceGroup is a set of workspaces of one project.
type workspaceGroup []*fixture.Workspace

// each calls do for every workspace, a few at a time.
func (c workspaceGroup) each(t testing.TB, do func(ctx context.Context, i int, w *fixture.Workspace) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(callers)
	for i, w := range c {
		group.Go(func() error { return do(ctx, i, w) })
	}
	require.NoError(t, group.Wait())
}

// newWorkspaceGroup creates workspaces, each with two equal requests as after a lost answer. They
// are spread over the agents.
func newWorkspaceGroup(s *fixture.System, name string, size int, agents ...int64) workspaceGroup {
	s.T.Helper()
	c := make(workspaceGroup, size)
	for i := range c {
		c[i] = &fixture.Workspace{
			T:         s.T,
			System:    s,
			Name:      fmt.Sprintf("%s-%d", name, i),
			ProjectID: s.ProjectID,
			AgentID:   agents[i%len(agents)],
		}
	}
	c.each(s.T, func(ctx context.Context, _ int, w *fixture.Workspace) error {
		request := &statev1.CreateWorkspaceRequest{
			Name: w.Name, ProjectId: w.ProjectID, AgentId: w.AgentID, IdempotencyKey: w.Name,
			Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage, Cpu: "10m", Memory: "16Mi", VolumeSize: "1Gi"},
		}
		var duplicates errgroup.Group
		created := make([]*statev1.Workspace, 2)
		for i := range created {
			duplicates.Go(func() error {
				response, err := s.API.Workspaces.CreateWorkspace(ctx, connect.NewRequest(request))
				if err == nil {
					created[i] = response.Msg.GetWorkspace()
				}
				return err
			})
		}
		if err := duplicates.Wait(); err != nil {
			return err
		}
		if created[0].GetId() != created[1].GetId() {
			return fmt.Errorf("workspace %s was created twice", w.Name)
		}
		w.ID, w.Namespace = created[0].GetId(), created[0].GetNamespace()
		return nil
	})
	return c
}

func (c workspaceGroup) setDesired(t testing.TB, state statev1.DesiredState) {
	t.Helper()
	c.each(t, func(ctx context.Context, _ int, w *fixture.Workspace) error {
		_, err := w.System.API.Workspaces.SetDesiredState(ctx,
			connect.NewRequest(&statev1.SetDesiredStateRequest{Workspace: w.Reference(), DesiredState: state}))
		return err
	})
}

// await watches all workspaces until each fulfils the condition.
func (c workspaceGroup) await(wanted string, is func(*statev1.Workspace) bool) {
	s, t := c[0].System, c[0].T
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The timeout applies to each next workspace: the time for all depends on the machine.
	deadline := time.AfterFunc(fixture.Timeout, cancel)
	defer deadline.Stop()
	stream, err := s.API.Workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{
		Filter: &statev1.WorkspaceFilter{ProjectId: c[0].ProjectID, IncludeTerminated: true},
	}))
	require.NoError(t, err)
	defer stream.Close()
	missing := make(map[string]*statev1.Workspace, len(c))
	for _, w := range c {
		missing[w.ID] = nil
	}
	for len(missing) > 0 && stream.Receive() {
		now := stream.Msg().GetWorkspace()
		switch _, ours := missing[now.GetId()]; {
		case !ours:
		case is(now):
			delete(missing, now.GetId())
			deadline.Reset(fixture.Timeout)
		default:
			missing[now.GetId()] = now
		}
	}
	for _, last := range missing {
		require.FailNow(t, fmt.Sprintf("%d of %d workspaces did not become %s", len(missing), len(c), wanted),
			"%v\none was last seen as: %v", stream.Err(), last)
	}
}
