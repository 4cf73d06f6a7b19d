package workspaces_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// configureAgent changes an agent's configuration and returns the result.
func configureAgent(s *fixture.System, agent int64, change *statev1.AgentConfiguration) *statev1.AgentConfiguration {
	s.T.Helper()
	response, err := s.API.Agents.ConfigureAgent(s.T.Context(),
		connect.NewRequest(&statev1.ConfigureAgentRequest{Id: agent, Configuration: change}))
	require.NoError(s.T, err)
	return response.Msg.GetAgent().GetConfiguration()
}

// newAgent adds an agent in a project of its own, so that its configuration affects no other test.
func newAgent(s *fixture.System, name string) (stack.Agent, int64) {
	s.T.Helper()
	project := s.NewProject(name)
	agent, err := s.AddAgent(s.T.Context(), project, name, s.Kubeconfig())
	require.NoError(s.T, err)
	return agent, project
}

// lastResync returns the agent's last full resync, or nil.
func lastResync(s *fixture.System, agent int64) *statev1.Resync {
	s.T.Helper()
	response, err := s.API.Agents.GetAgent(s.T.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: agent}))
	require.NoError(s.T, err)
	return response.Msg.GetAgent().GetLastResync()
}

// awaitResync waits until a full resync with the cause is complete.
func awaitResync(s *fixture.System, agent int64, cause events.ResyncCause) {
	s.T.Helper()
	require.Eventually(s.T, func() bool {
		last := lastResync(s, agent)
		return last.GetCause() == string(cause) && last.GetOutcome() == "complete"
	}, fixture.Timeout, fixture.PollInterval, "a full resync for %s", cause)
}

func TestPoliciesQuotas(t *testing.T) {
	s := shared.Parallel(t)

	agent, project := newAgent(s, "quota")
	cli := s.CLI()
	place := []string{"--project", strconv.FormatInt(project, 10), "--image", fixture.GoodImage}
	create := func(name string) []string { return append([]string{"ws", "create", name, "-o", "json"}, place...) }
	made := func(name string) *fixture.Workspace {
		return s.WorkspaceOf(
			fixture.ParseOutput(t, cli.OK(create(name)...), &statev1.CreateWorkspaceResponse{}).GetWorkspace(),
		)
	}
	require.Regexp(t, `(?m)^max workspaces per user +1$`,
		cli.OK("agent", "configure", "quota", "--max-workspaces-per-user", "1"))
	first := made("within-quota")
	refused := cli.Fails(10, create("beyond-quota")...)
	require.Contains(
		t,
		refused,
		`user admin has 1 workspace on agent "quota", the limit per user is 1: `+
			`terminate one, or ask a maintainer to raise max_workspaces_per_user`,
	)
	require.NotContains(t, cli.OK("ws", "list", "--terminated"), "beyond-quota")

	// The request to terminate frees the quota, not the end of the termination.
	first.Terminate()
	second := made("freed-quota")
	cli.OK("agent", "configure", strconv.FormatInt(agent.ID, 10), "--max-workspaces-per-user", "-1", "--max-workspaces",
		"1")
	require.Contains(t, cli.Fails(10, create("beyond-quota")...), `agent "quota" has 1 workspace, the limit is 1`)
	second.AwaitRunning()
	first.AwaitTerminated()
	second.Terminate()
	second.AwaitTerminated()
}

func TestPoliciesExpiry(t *testing.T) {
	s := shared.Parallel(t)

	agent, project := newAgent(s, "ages")
	cli := s.CLI()
	w := s.CreateWith(
		&statev1.CreateWorkspaceRequest{
			Name:      "ages",
			ProjectId: project,
			AgentId:   agent.ID,
			Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage},
		},
	)
	w.AwaitRunning()
	require.Regexp(t, `(?m)^expires +never$`, cli.OK("ws", "get", "ages"))

	// The workspace is already over its time. It still gets a warning first and stops at the
	// announced time.
	cli.OK("agent", "configure", "ages", "--stop-after-running", "1s", "--expiry-warning", "1s")
	seen := w.Events()
	begun := seen.Until(events.ActualStateRunning)
	require.Empty(t, begun.Warnings)
	ended := seen.Until(events.ActualStateStopped)
	require.Len(t, ended.Warnings, 1, "once")
	warning := ended.Warnings[0]
	require.Equal(t, events.ExpiryPolicyStopAfterRunning, warning.Policy)
	require.Equal(t, events.DesiredStateStopped, warning.To)
	require.Contains(t, warning.Message, "workspace ages will be stopped at ")
	require.Len(t, ended.DesiredChanges, 1)
	stop := ended.DesiredChanges[0]
	require.Equal(t, events.DesiredStateCauseStopAfterRunning, *stop.Cause)
	require.Equal(t, events.DesiredStateStopped, stop.To)
	require.Zero(t, stop.UserID, "no user requested it")
	require.Equal(t, "workspace ages is stopped: it ran for 1s, the limit of its agent; start it to continue",
		stop.Message)
	order := func(part string) int {
		return slices.IndexFunc(ended.IDs, func(id string) bool { return strings.Contains(id, part) })
	}
	require.Less(t, order("/expiry/"), order("/desired/"), "the warning comes before the end: %v", ended.IDs)
	require.False(t, w.Get().GetDesiredStateChangedAt().AsTime().Before(warning.ExpiresAt),
		"it ends at the announced time, not before")
	for _, words := range []string{
		"workspace.expiry_warning", "policy=stop_after_running", "cause=stop_after_running", "start it to continue",
	} {
		require.Contains(t, cli.OK("ws", "events", "ages"), words)
	}

	// A new start gives it the whole time again.
	cli.OK("agent", "configure", "ages", "--stop-after-running", "1h")
	started := w.Start()
	require.Equal(t, "stop_after_running", started.GetExpiryPolicy())
	require.Equal(t, started.GetDesiredStateChangedAt().AsTime().Add(time.Hour), started.GetExpiresAt().AsTime())
	w.AwaitRunning()
	require.Regexp(t, `(?m)^expires +in (1h|59m).*: stopped by stop_after_running$`, cli.OK("ws", "get", "ages"))
	again := seen.Until(events.ActualStateRunning)
	require.Empty(t, again.Warnings)

	cli.OK("agent", "configure", "ages", "--terminate-after-stopped", "1s")
	w.Stop()
	w.AwaitTerminated()
	last := seen.Until(events.ActualStateTerminated)
	require.Len(t, last.Warnings, 1)
	require.Equal(t, events.ExpiryPolicyTerminateAfterStopped, last.Warnings[0].Policy)
	require.Equal(t, events.DesiredStateCauseTerminateAfterStopped, *last.DesiredChanges[len(last.DesiredChanges)-1].Cause)
	w.RequireGone()
}

// TestPoliciesAgentConfiguration covers four of the five triggers of a full resync. The fifth is a
// change of leader.
func TestPoliciesAgentConfiguration(t *testing.T) {
	s := shared.Parallel(t)

	agent, project := newAgent(s, "configured")
	cli := s.CLI()
	awaitResync(s, agent.ID, events.ResyncCauseStart)
	require.Regexp(t, `(?m)^last resync +complete, 0 objects, `, cli.OK("agent", "get", "configured"))

	w := s.CreateWith(&statev1.CreateWorkspaceRequest{
		Name:      "configured",
		ProjectId: project,
		AgentId:   agent.ID,
		Overrides: &statev1.WorkspaceOverrides{Image: "registry.example/unschedulable:1"},
	})
	w.Await("Starting", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_STARTING
	})
	shown := cli.OK("agent", "configure", "configured", "--unschedulable-patience", "1s")
	require.Regexp(t, `(?m)^unschedulable patience +1s$`, shown)
	require.Regexp(t, `(?m)^configuration revision +2$`, shown)
	awaitResync(s, agent.ID, events.ResyncCauseConfigChanged)
	w.AwaitFailed("Unschedulable")
	cli.OK("agent", "configure", "configured", "--unschedulable-patience", "0")
	w.Await("Starting: the timeout is disabled", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_STARTING
	})

	answer := cli.OK("agent", "resync", "configured", "--wait", "-o", "json")
	resync := fixture.ParseOutput(t, answer, &statev1.Resync{})
	require.Equal(t, string(events.ResyncCauseRequested), resync.GetCause())
	require.Equal(t, "complete", resync.GetOutcome())
	require.NotZero(t, resync.GetCount())
	before := resync.GetNonce()
	nonce := fixture.ParseOutput(t, cli.OK("agent", "resync", strconv.FormatInt(agent.ID, 10), "-o", "json"),
		&statev1.RequestResyncResponse{}).GetNonce()
	require.NotEqual(t, before, nonce)
	require.Eventually(t, func() bool {
		last := lastResync(s, agent.ID)
		return last.GetNonce() == nonce && last.GetOutcome() == "complete"
	}, fixture.Timeout, fixture.PollInterval, "the resync has the nonce of the request")

	revision := configureAgent(s, agent.ID,
		&statev1.AgentConfiguration{FullResyncInterval: durationpb.New(time.Second)}).GetRevision()
	awaitResync(s, agent.ID, events.ResyncCauseInterval)
	same := configureAgent(s, agent.ID, &statev1.AgentConfiguration{FullResyncInterval: durationpb.New(time.Second)})
	require.Equal(t, revision, same.GetRevision(), "an equal configuration is no change")
	cli.OK("agent", "configure", "configured", "--full-resync-interval", "1h")
	repairImage(w)
	shown = cli.OK("agent", "configure", "configured", "--relay-target", "shop=shop.apps.svc:80", "--relay-target",
		"db=db.apps.svc:5432")
	require.Regexp(t, `(?m)^relay targets +db=db.apps.svc:5432, shop=shop.apps.svc:80$`, shown)
	require.Contains(t, cli.Fails(2, "agent", "configure", "configured", "--relay-target", "kubernetes=a:1"),
		"relay_targets.kubernetes: is reserved for the agent's Kubernetes API")
	require.Regexp(t, `(?m)^relay targets +none$`, cli.OK("agent", "configure", "configured", "--no-relay-targets"))
	require.Contains(t, cli.Fails(2, "agent", "configure", "configured"), "no setting is given")
	wrong := cli.Fails(2, "agent", "configure", "configured", "--max-age", "1ms", "--max-workspaces", "-2",
		"--full-resync-interval", "0")
	for _, field := range []string{"max_age", "max_workspaces", "full_resync_interval"} {
		require.Contains(t, wrong, field)
	}
	require.Contains(t, cli.Fails(5, "agent", "get", "nobody"), "nobody")
	require.Contains(t, cli.OK("__complete", "agent", "get", ""), "configured")
}
