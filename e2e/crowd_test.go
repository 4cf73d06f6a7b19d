package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// callers is how many calls are under way at a time where many are to be made.
const callers = 16

// crowd is many workspaces of one project.
type crowd []*workspace

// each does something with every workspace, some at a time.
func (c crowd) each(t *testing.T, do func(ctx context.Context, i int, w *workspace) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(callers)
	for i, w := range c {
		group.Go(func() error { return do(ctx, i, w) })
	}
	require.NoError(t, group.Wait())
}

// newCrowd asks for workspaces, each twice as a client does that lost the answer. Agents have them in turn.
func (s *system) newCrowd(name string, size int, agents ...int64) crowd {
	s.t.Helper()
	c := make(crowd, size)
	for i := range c {
		c[i] = &workspace{t: s.t, s: s, name: fmt.Sprintf("%s-%d", name, i), project: s.project, agent: agents[i%len(agents)]}
	}
	c.each(s.t, func(ctx context.Context, _ int, w *workspace) error {
		request := &statev1.CreateWorkspaceRequest{
			Name: w.name, ProjectId: w.project, AgentId: w.agent, IdempotencyKey: w.name,
			Overrides: &statev1.WorkspaceOverrides{Image: goodImage, Cpu: "10m", Memory: "16Mi", VolumeSize: "1Gi"},
		}
		var twin errgroup.Group
		made := make([]*statev1.Workspace, 2)
		for i := range made {
			twin.Go(func() error {
				response, err := s.api.Workspaces.CreateWorkspace(ctx, connect.NewRequest(request))
				if err == nil {
					made[i] = response.Msg.GetWorkspace()
				}
				return err
			})
		}
		if err := twin.Wait(); err != nil {
			return err
		}
		if made[0].GetId() != made[1].GetId() {
			return fmt.Errorf("workspace %s was made twice", w.name)
		}
		w.id, w.namespace = made[0].GetId(), made[0].GetNamespace()
		return nil
	})
	return c
}

func (c crowd) desire(t *testing.T, state statev1.DesiredState) {
	t.Helper()
	c.each(t, func(ctx context.Context, _ int, w *workspace) error {
		_, err := w.s.api.Workspaces.SetDesiredState(ctx, connect.NewRequest(&statev1.SetDesiredStateRequest{Workspace: w.reference(), DesiredState: state}))
		return err
	})
}

// until watches all of them at once until each is as wanted.
func (c crowd) until(wanted string, is func(*statev1.Workspace) bool) {
	s, t := c[0].s, c[0].t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Patience is for each next one: how long all of them take says how fast the machine is.
	deadline := time.AfterFunc(patience, cancel)
	defer deadline.Stop()
	stream, err := s.api.Workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{
		Filter: &statev1.WorkspaceFilter{ProjectId: c[0].project, IncludeTerminated: true},
	}))
	require.NoError(t, err)
	defer stream.Close()
	missing := make(map[string]*statev1.Workspace, len(c))
	for _, w := range c {
		missing[w.id] = nil
	}
	for len(missing) > 0 && stream.Receive() {
		now := stream.Msg().GetWorkspace()
		switch _, ours := missing[now.GetId()]; {
		case !ours:
		case is(now):
			delete(missing, now.GetId())
			deadline.Reset(patience)
		default:
			missing[now.GetId()] = now
		}
	}
	for _, last := range missing {
		require.FailNow(t, fmt.Sprintf("%d of %d workspaces did not become %s", len(missing), len(c), wanted), "%v\none was last seen as: %v", stream.Err(), last)
	}
}
