package e2e_test

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// configure sets what holds for an agent.
func (s *system) configure(agent int64, change *statev1.AgentConfiguration) *statev1.AgentConfiguration {
	s.t.Helper()
	response, err := s.api.Agents.ConfigureAgent(s.t.Context(), connect.NewRequest(&statev1.ConfigureAgentRequest{Id: agent, Configuration: change}))
	require.NoError(s.t, err)
	return response.Msg.GetAgent().GetConfiguration()
}

// ownAgent is one of a project of its own, so that what is set for it concerns no other test.
func (s *system) ownAgent(name string) (stack.Agent, int64) {
	s.t.Helper()
	project := s.newProject(name)
	agent, err := s.AddAgent(s.t.Context(), project, name, s.Kubeconfig())
	require.NoError(s.t, err)
	return agent, project
}

// lastResync is the agent's, nil before the first.
func (s *system) lastResync(agent int64) *statev1.Resync {
	s.t.Helper()
	response, err := s.api.Agents.GetAgent(s.t.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: agent}))
	require.NoError(s.t, err)
	return response.Msg.GetAgent().GetLastResync()
}

// untilResync waits for a full resync for the cause that came in whole.
func (s *system) untilResync(agent int64, cause events.ResyncCause) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		last := s.lastResync(agent)
		return last.GetCause() == string(cause) && last.GetOutcome() == "complete"
	}, patience, clusterTick, "a full resync for %s", cause)
}

func quotasHold(s *system) {
	t := s.t
	agent, project := s.ownAgent("quota")
	cli := s.commandLine()
	place := []string{"--project", strconv.FormatInt(project, 10), "--image", goodImage}
	create := func(name string) []string { return append([]string{"ws", "create", name, "-o", "json"}, place...) }
	made := func(name string) *workspace {
		return s.named(printed(t, cli.ok(create(name)...), &statev1.CreateWorkspaceResponse{}).GetWorkspace())
	}
	require.Regexp(t, `(?m)^max workspaces per user +1$`, cli.ok("agent", "configure", "quota", "--max-workspaces-per-user", "1"))
	first := made("within-quota")
	refused := cli.fails(10, create("beyond-quota")...)
	require.Contains(t, refused, `user admin has 1 workspace on agent "quota", where each user may have 1: terminate one, or ask a maintainer to raise max_workspaces_per_user`)
	require.NotContains(t, cli.ok("ws", "list", "--terminated"), "beyond-quota")

	// It is the wish to terminate that frees the place, not its end.
	first.terminate()
	second := made("freed-quota")
	cli.ok("agent", "configure", strconv.FormatInt(agent.ID, 10), "--max-workspaces-per-user", "-1", "--max-workspaces", "1")
	require.Contains(t, cli.fails(10, create("beyond-quota")...), `agent "quota" has 1 workspace of the 1 that it may have`)
	second.untilRunning()
	first.untilTerminated()
	second.terminate()
	second.untilTerminated()
}

func agePoliciesEndWhatNobodyEnds(s *system) {
	t := s.t
	agent, project := s.ownAgent("ages")
	cli := s.commandLine()
	w := s.createAs(&statev1.CreateWorkspaceRequest{Name: "ages", ProjectId: project, AgentId: agent.ID, Overrides: &statev1.WorkspaceOverrides{Image: goodImage}})
	w.untilRunning()
	require.Regexp(t, `(?m)^expires +never$`, cli.ok("ws", "get", "ages"))

	// The policy finds it over its time: it is warned of all the same, and stopped no sooner than it was told.
	cli.ok("agent", "configure", "ages", "--stop-after-running", "1s", "--expiry-warning", "1s")
	told := w.follow()
	begun := told.through(events.ActualStateRunning)
	require.Empty(t, begun.warnings)
	ended := told.through(events.ActualStateStopped)
	require.Len(t, ended.warnings, 1, "once")
	warning := ended.warnings[0]
	require.Equal(t, events.ExpiryPolicyStopAfterRunning, warning.Policy)
	require.Equal(t, events.DesiredStateStopped, warning.To)
	require.Contains(t, warning.Message, "workspace ages will be stopped at ")
	require.Len(t, ended.wishes, 1)
	stop := ended.wishes[0]
	require.Equal(t, events.DesiredStateCauseStopAfterRunning, *stop.Cause)
	require.Equal(t, events.DesiredStateStopped, stop.To)
	require.Zero(t, stop.UserID, "nobody asked for it")
	require.Equal(t, "workspace ages is stopped: it has run for the 1s that its agent lets workspaces run at a time; start it to go on", stop.Message)
	order := func(part string) int {
		return slices.IndexFunc(ended.ids, func(id string) bool { return strings.Contains(id, part) })
	}
	require.Less(t, order("/expiry/"), order("/desired/"), "the warning comes before the end: %v", ended.ids)
	require.False(t, w.get().GetDesiredStateChangedAt().AsTime().Before(warning.ExpiresAt), "it ends when it was told, not before")
	for _, words := range []string{"workspace.expiry_warning", "policy=stop_after_running", "cause=stop_after_running", "start it to go on"} {
		require.Contains(t, cli.ok("ws", "events", "ages"), words)
	}

	// Whoever starts it again has all of the time again.
	cli.ok("agent", "configure", "ages", "--stop-after-running", "1h")
	started := w.start()
	require.Equal(t, "stop_after_running", started.GetExpiryPolicy())
	require.Equal(t, started.GetDesiredStateChangedAt().AsTime().Add(time.Hour), started.GetExpiresAt().AsTime())
	w.untilRunning()
	require.Regexp(t, `(?m)^expires +in (1h|59m).*: it is stopped by stop_after_running$`, cli.ok("ws", "get", "ages"))
	again := told.through(events.ActualStateRunning)
	require.Empty(t, again.warnings)

	cli.ok("agent", "configure", "ages", "--terminate-after-stopped", "1s")
	w.stop()
	w.untilTerminated()
	last := told.through(events.ActualStateTerminated)
	require.Len(t, last.warnings, 1)
	require.Equal(t, events.ExpiryPolicyTerminateAfterStopped, last.warnings[0].Policy)
	require.Equal(t, events.DesiredStateCauseTerminateAfterStopped, *last.wishes[len(last.wishes)-1].Cause)
	w.requireGone()
}

// configurationIsFollowed shows four of the five triggers of a full resync; the fifth is a leader's that follows another.
func configurationIsFollowed(s *system) {
	t := s.t
	agent, project := s.ownAgent("configured")
	cli := s.commandLine()
	s.untilResync(agent.ID, events.ResyncCauseStart)
	require.Regexp(t, `(?m)^last resync +complete, 0 objects, `, cli.ok("agent", "get", "configured"))

	w := s.createAs(&statev1.CreateWorkspaceRequest{
		Name: "configured", ProjectId: project, AgentId: agent.ID, Overrides: &statev1.WorkspaceOverrides{Image: "registry.example/unschedulable:1"},
	})
	w.until("Starting", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_STARTING
	})
	shown := cli.ok("agent", "configure", "configured", "--unschedulable-patience", "1s")
	require.Regexp(t, `(?m)^unschedulable patience +1s$`, shown)
	require.Regexp(t, `(?m)^configuration revision +2$`, shown)
	s.untilResync(agent.ID, events.ResyncCauseConfigChanged)
	w.untilFailed("Unschedulable")
	cli.ok("agent", "configure", "configured", "--unschedulable-patience", "0")
	w.until("Starting: patience has no end now", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_STARTING
	})

	answer := cli.ok("agent", "resync", "configured", "--wait", "-o", "json")
	resync := printed(t, answer, &statev1.Resync{})
	require.Equal(t, string(events.ResyncCauseRequested), resync.GetCause())
	require.Equal(t, "complete", resync.GetOutcome())
	require.NotZero(t, resync.GetCount())
	before := resync.GetNonce()
	nonce := printed(t, cli.ok("agent", "resync", strconv.FormatInt(agent.ID, 10), "-o", "json"), &statev1.RequestResyncResponse{}).GetNonce()
	require.NotEqual(t, before, nonce)
	require.Eventually(t, func() bool {
		last := s.lastResync(agent.ID)
		return last.GetNonce() == nonce && last.GetOutcome() == "complete"
	}, patience, clusterTick, "the answer names its question")

	revision := s.configure(agent.ID, &statev1.AgentConfiguration{FullResyncInterval: durationpb.New(time.Second)}).GetRevision()
	s.untilResync(agent.ID, events.ResyncCauseInterval)
	same := s.configure(agent.ID, &statev1.AgentConfiguration{FullResyncInterval: durationpb.New(time.Second)})
	require.Equal(t, revision, same.GetRevision(), "what changes nothing is no change")
	cli.ok("agent", "configure", "configured", "--full-resync-interval", "1h")
	w.mend()
	shown = cli.ok("agent", "configure", "configured", "--relay-target", "shop=shop.apps.svc:80", "--relay-target", "db=db.apps.svc:5432")
	require.Regexp(t, `(?m)^relay targets +db=db.apps.svc:5432, shop=shop.apps.svc:80$`, shown)
	require.Contains(t, cli.fails(2, "agent", "configure", "configured", "--relay-target", "kubernetes=a:1"), "relay_targets.kubernetes: is the name of the agent's Kubernetes API")
	require.Regexp(t, `(?m)^relay targets +none$`, cli.ok("agent", "configure", "configured", "--no-relay-targets"))
	require.Contains(t, cli.fails(2, "agent", "configure", "configured"), "nothing to set is given")
	wrong := cli.fails(2, "agent", "configure", "configured", "--max-age", "1ms", "--max-workspaces", "-2", "--full-resync-interval", "0")
	for _, field := range []string{"max_age", "max_workspaces", "full_resync_interval"} {
		require.Contains(t, wrong, field)
	}
	require.Contains(t, cli.fails(5, "agent", "get", "nobody"), "nobody")
	require.Contains(t, cli.ok("__complete", "agent", "get", ""), "configured")
}
