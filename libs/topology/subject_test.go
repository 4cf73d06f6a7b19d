package topology_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
)

func TestSubjects(t *testing.T) {
	t.Parallel()
	cell := topology.Cell("eu-1")
	for want, got := range map[string]string{
		"lockstep.eu-1.observed.7.deployment.ws-7-a.a":  cell.Observed(7, "deployment", "ws-7-a", "a"),
		"lockstep.eu-1.observed.7.namespace._.ws%2Ea":   cell.Observed(7, "namespace", "", "ws.a"),
		"lockstep.eu-1.observed.7.resync":               cell.ObservedResync(7),
		"lockstep.eu-1.observed.cluster.a%2Eb.released": cell.ObservedClusterReleased("a.b"),
		"lockstep.eu-1.desired.7.w":                     cell.Desired(7, "w"),
		"lockstep.eu-1.agent.7.connected":               cell.AgentConnected(7),
		"lockstep.eu-1.agent.7.disconnected":            cell.AgentDisconnected(7),
		"lockstep.eu-1.agent.7.requests":                cell.AgentRequests(7),
		"lockstep.eu-1.audit.7.requests":                cell.AuditRequests(7),
		"lockstep.eu-1.control.*.config":                cell.ControlConfigs(),
		"lockstep.eu-1.workspace.3.w.state_changed":     cell.Workspace(3, "w", "state_changed"),
		"lockstep.eu-1.job.3.9.pending":                 cell.Job(3, 9, "pending"),
		"lockstep.eu-1.job.3.9.*":                       cell.JobAll(3, 9),
		"lockstep.eu-1.dead.state.observed.7.deployment.ws-7-a.a": cell.Dead(
			"state", "lockstep.eu-1.observed.7.deployment.ws-7-a.a",
		),
		"lockstep.eu-1.directory.membership.project:3%2E1 escaped": strings.ReplaceAll(
			cell.Directory("membership", "project:3.1 escaped"), "%20", " ",
		),
	} {
		require.Equal(t, want, got)
	}
}

func TestObservedPatternsMatchWhatTheBuildersReturnAndNoLongerSubject(t *testing.T) {
	t.Parallel()
	cell := topology.Cell("eu-1")
	matches := func(subject string) bool {
		return slices.ContainsFunc(cell.ObservedPatterns("7"), func(pattern string) bool {
			return server.SubjectsCollide(pattern, subject)
		})
	}
	for _, subject := range []string{
		cell.Observed(7, "deployment", "a.b", "c.d"), cell.Observed(7, "namespace", "", ""),
		cell.ObservedWorkload(7, "deployment", "a.b", "c.d"), cell.ObservedResync(7), cell.ObservedTick(7),
		cell.ObservedRejected(7), cell.ObservedMembers(7),
	} {
		require.True(t, matches(subject), subject)
		require.False(t, matches(subject+".deeper.by.two"), subject)
	}
	require.False(t, matches(cell.ObservedResync(8)))
	require.False(t, matches(cell.ObservedClusterReleased("7")))
}

func TestParseInvertsTheBuilders(t *testing.T) {
	t.Parallel()
	s, err := topology.Parse(topology.Cell("local").Observed(7, "deployment", "", "a.b*c>d%e f"))
	require.NoError(t, err)
	require.Equal(
		t, topology.Subject{Cell: "local", Family: "observed", Tokens: []string{"7", "deployment", "_", "a.b*c>d%e f"}},
		s,
	)
	agent, err := s.Agent()
	require.NoError(t, err)
	require.Equal(t, int64(7), agent)
}

func TestParseRejectsInvalidSubjects(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"", "lockstep", "lockstep.local.observed", "other.local.observed.7",
		"lockstep.Local.observed.7", "lockstep.local.observed.*", "lockstep.local.observed.>", "lockstep.local.observed.%2",
		"lockstep.local.observed.%41", "lockstep.local.observed..x",
	} {
		_, err := topology.Parse(subject)
		require.Error(t, err, subject)
	}
	for _, token := range []string{"0", "-1", "07", "x", "9223372036854775808"} {
		s, err := topology.Parse("lockstep.local.observed." + token + ".tick")
		require.NoError(t, err)
		_, err = s.Agent()
		require.Error(t, err, token)
	}
	s, err := topology.Parse("lockstep.local.workspace.7.w.created")
	require.NoError(t, err)
	_, err = s.Agent()
	require.ErrorContains(t, err, "no agent")
}

func TestOrderingKeyMatchesTheEventsOfOneWorkspaceOrAgent(t *testing.T) {
	t.Parallel()
	id := regexp.MustCompile(topology.Cell("local").OrderingKey())
	for _, subject := range []string{
		topology.Cell("local").Workspace(7, "w", "created"), topology.Cell("local").Workspace(0, "w", "orphaned"),
	} {
		require.Equal(t, "w", id.FindStringSubmatch(subject)[1])
	}
	for _, subject := range []string{topology.Cell("local").AgentSilent(7), topology.Cell("local").AgentReturned(7)} {
		require.Equal(t, "7", id.FindStringSubmatch(subject)[1])
	}
	for _, subject := range []string{
		topology.Cell("other").Workspace(7, "w", "created"), topology.Cell("local").Desired(7, "w"),
		"lockstep.local.workspace",
	} {
		require.Nil(t, id.FindStringSubmatch(subject), subject)
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a.b")
	f.Add("\xff%2E é")
	f.Fuzz(func(t *testing.T, token string) {
		escaped := topology.Escape(token)
		require.NotEmpty(t, escaped)
		require.False(t, strings.ContainsAny(escaped, ".*> \t\r\n\x00"), "%q", escaped)
		back, err := topology.Unescape(escaped)
		require.NoError(t, err)
		require.Equal(t, token, back)
	})
}

func TestStreamsShareTheStorage(t *testing.T) {
	t.Parallel()
	total := 0
	for _, s := range topology.Streams() {
		total += s.Share
		cfg := s.Config("local", topology.Options{})
		require.Positive(t, cfg.MaxBytes)
		require.Equal(t, topology.MaxMessageSize, int(cfg.MaxMsgSize))
		require.Equal(t, []string{"lockstep.local." + s.Family + ".>"}, cfg.Subjects)
	}
	require.Equal(t, 100, total)
}
