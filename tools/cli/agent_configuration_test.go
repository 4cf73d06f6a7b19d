package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestConfigureSendsOnlyGivenSettings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want *statev1.AgentConfiguration
	}{
		"nothing": {},
		"zero": {
			[]string{"--max-age", "0", "--max-workspaces=0"},
			&statev1.AgentConfiguration{MaxAge: durationpb.New(0), MaxWorkspaces: proto.Int32(0)},
		},
		"everything": {
			[]string{
				"--full-resync-interval", "1h", "--unschedulable-patience", "2m", "--stop-patience", "3m",
				"--max-workspaces", "-1", "--max-workspaces-per-user", "5",
				"--stop-after-running", "8h", "--terminate-after-stopped", "720h", "--max-age", "1000h",
				"--expiry-warning", "15m",
				"--relay-target", "shop=shop.apps.svc:80", "--relay-target=db=[fd00::7]:5432",
				"--termination-patience", "4m", "--progress-deadline", "1m", "--resource-quota",
				"--default-cpu", "1", "--default-memory", "2Gi", "--default-volume-size", "3Gi",
				"--max-cpu", "4", "--max-memory", "5Gi", "--max-volume-size", "6Gi", "--storage-class", "fast",
				"--ingress-peers", "monitoring,lockstep-agent-{agent_id}:a=b", "--dns-peers", "dns:c=d",
				"--private-ranges", "10.0.0.0/8", "--egress-allowed", "10.1.0.0/16,10.2.0.0/16",
				"--agent-image", "agent:1", "--ssh-authorities", "ssh-ed25519 AAAA", "--owner-access",
				"--idle-counts-processes",
			},
			&statev1.AgentConfiguration{
				FullResyncInterval:    durationpb.New(time.Hour),
				UnschedulablePatience: durationpb.New(2 * time.Minute), StopPatience: durationpb.New(3 * time.Minute),
				MaxWorkspaces: proto.Int32(-1), MaxWorkspacesPerUser: proto.Int32(5),
				StopAfterRunning:      durationpb.New(8 * time.Hour),
				TerminateAfterStopped: durationpb.New(720 * time.Hour),
				MaxAge:                durationpb.New(1000 * time.Hour), ExpiryWarning: durationpb.New(15 * time.Minute),
				RelayTargets: &statev1.RelayTargets{Targets: []*statev1.RelayTarget{
					{Name: "shop", Address: "shop.apps.svc:80"},
					{Name: "db", Address: "[fd00::7]:5432"},
				}},
				TerminationPatience: durationpb.New(4 * time.Minute), ProgressDeadline: durationpb.New(time.Minute),
				ResourceQuota: new(true), StorageClass: new("fast"),
				DefaultCpu: new("1"), DefaultMemory: new("2Gi"), DefaultVolumeSize: new("3Gi"),
				MaxCpu: new("4"), MaxMemory: new("5Gi"), MaxVolumeSize: new("6Gi"),
				IngressPeers: &statev1.StringList{
					Values: []string{"monitoring", "lockstep-agent-{agent_id}:a=b"},
				},
				DnsPeers:      &statev1.StringList{Values: []string{"dns:c=d"}},
				PrivateRanges: &statev1.StringList{Values: []string{"10.0.0.0/8"}},
				EgressAllowed: &statev1.StringList{Values: []string{"10.1.0.0/16", "10.2.0.0/16"}},
				AgentImage:    new("agent:1"), SshAuthorities: &statev1.StringList{Values: []string{"ssh-ed25519 AAAA"}},
				OwnerAccess: new(true), IdleCountsProcesses: new(true),
			},
		},
		"nothing is allowed": {
			[]string{
				"--ingress-peers=", "--max-cpu=", "--resource-quota=false", "--owner-access=false",
				"--idle-counts-processes=false",
			},
			&statev1.AgentConfiguration{
				IngressPeers: &statev1.StringList{}, MaxCpu: new(""), ResourceQuota: new(false), OwnerAccess: new(false),
				IdleCountsProcesses: new(false),
			},
		},
		"only a reset": {[]string{"--reset", "max_cpu"}, &statev1.AgentConfiguration{}},
		"no targets":   {[]string{"--no-relay-targets"}, &statev1.AgentConfiguration{RelayTargets: &statev1.RelayTargets{}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var flags configurationFlags
			c := &cobra.Command{}
			c.PersistentFlags().String("other", "", "")
			flags.add(c)
			require.NoError(t, c.ParseFlags(append(test.args, "--other", "x")))
			got, given, err := flags.change(c)
			require.NoError(t, err)
			require.Equal(t, test.want != nil, given)
			if given {
				require.True(t, proto.Equal(test.want, got), "%v", got)
			}
		})
	}
}

func TestSettingsAreResetByTheNamesOfTheirFlags(t *testing.T) {
	t.Parallel()
	var flags configurationFlags
	c := &cobra.Command{}
	flags.add(c)
	require.NoError(t, c.ParseFlags([]string{"--reset", "max-cpu,max_memory"}))
	_, given, err := flags.change(c)
	require.NoError(t, err)
	require.True(t, given)
	require.Equal(t, []string{"max_cpu", "max_memory"}, flags.reset)
	shown := agentFields(&names{hidden: true}, &statev1.Agent{OwnSettings: []string{"max_cpu", "max_age"}}).rows
	require.Contains(t, shown, []string{"own settings", "max-cpu, max-age"})
}

func TestInvalidRelayTargets(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`"shop.apps.svc:80" must be NAME=HOST:PORT`: {"--relay-target", "shop.apps.svc:80"},
		"not both": {"--relay-target", "shop=shop.apps.svc:80", "--no-relay-targets"},
	} {
		var flags configurationFlags
		c := &cobra.Command{}
		flags.add(c)
		require.NoError(t, c.ParseFlags(args))
		_, _, err := flags.change(c)
		require.True(t, fault.Is(err, errcode.InvalidArgument))
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, "none", relayTargets(nil))
	require.Equal(t, "db=db:1, shop=shop:80",
		relayTargets([]*statev1.RelayTarget{{Name: "db", Address: "db:1"}, {Name: "shop", Address: "shop:80"}}))
}

func TestWaitForResync(t *testing.T) {
	t.Parallel()
	const earlier, mine, later = "01936f5e-8f3a-7c55-9b1c-0242ac120002/deployment:9",
		"01936f5e-8f3b-7c55-9b1c-0242ac120002", "01936f5e-8f3c-7c55-9b1c-0242ac120002/pod:1"
	for want, resyncs := range map[bool][]*statev1.Resync{
		true: {
			{Nonce: mine, Outcome: "complete"},
			{Nonce: mine, Outcome: "incomplete"},
			{Nonce: later, Outcome: "complete"},
		},
		false: {
			nil,
			{Outcome: "complete"},
			{Nonce: earlier, Outcome: "complete"},
			{Nonce: mine, Outcome: "open"},
			{Nonce: later, Outcome: "open"},
		},
	} {
		for _, r := range resyncs {
			require.Equal(t, want, answers(r, mine), "%v", r)
		}
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	end := func(in time.Duration, policy string) *statev1.Workspace {
		return &statev1.Workspace{ExpiresAt: timestamppb.New(now.Add(in)), ExpiryPolicy: policy}
	}
	require.Equal(t, "never", expiry(&statev1.Workspace{}, now))
	require.Regexp(t, `^in 8h \(2026-.*\): stopped by stop_after_running$`,
		expiry(end(8*time.Hour, "stop_after_running"), now))
	require.Regexp(t, `^in 1h30m \(.*\): deleted with its volume by max_age$`, expiry(end(90*time.Minute, "max_age"), now))
	require.Regexp(t, `^overdue \(.*\): deleted with its volume by terminate_after_stopped$`,
		expiry(end(-time.Second, "terminate_after_stopped"), now))
	require.Equal(
		t,
		[]string{"never", "10m", "1m30s"},
		[]string{
			orNever(durationpb.New(0)),
			orNever(durationpb.New(10 * time.Minute)),
			orNever(durationpb.New(90 * time.Second)),
		},
	)
	require.Equal(t, []string{"unlimited", "0", "3"}, []string{orUnlimited(-1), orUnlimited(0), orUnlimited(3)})
}

func TestBlockAndClockOfAnAgentAreShown(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	g := &statev1.Agent{
		ClockOffset: durationpb.New(-2 * time.Hour),
		Block:       &statev1.AgentBlock{Reason: "published more than 5 bytes", BlockedUntil: timestamppb.New(until)},
	}
	fields := map[string]string{}
	for _, row := range agentFields(&names{hidden: true}, g).rows {
		fields[row[0]] = row[1]
	}
	require.Equal(t, "blocked until 2026-03-04T05:06:07Z: it published more than 5 bytes", fields["state"])
	require.Equal(t, "2h0m0s behind", fields["clock"])
	require.Equal(t, "8760h0m0s ahead", clockOffset(365*24*time.Hour))
	require.Equal(t, "right", clockOffset(-time.Minute))
	require.Contains(t, agentTable(&names{hidden: true}, g).rows[0], "blocked until 2026-03-04T05:06:07Z")
}

func TestSilentAgentsAndTheirStaleWorkspacesAreShown(t *testing.T) {
	t.Parallel()
	since := timestamppb.New(time.Now().Add(-5 * time.Minute))
	g := &statev1.Agent{LastSeenAt: since, SilentSince: since}
	require.Contains(t, agentTable(&names{hidden: true}, g).rows[0], "silent for 5m")
	require.Contains(t, agentFields(&names{hidden: true}, g).rows, []string{"state", "silent for 5m"})
	require.Contains(t, agentFields(&names{hidden: true}, g).rows, []string{"last seen", "5m"})
	w := &statev1.Workspace{ActualState: statev1.ActualState_ACTUAL_STATE_RUNNING, StaleSince: since}
	require.Contains(t, workspaceTable(&names{hidden: true}, w).rows[0], "Running (stale for 5m)")
	var out strings.Builder
	watching := &app{stdout: &out, output: outputTable}
	require.NoError(t, watching.showChange(&statev1.WatchWorkspacesResponse{Workspace: w}, map[string]string{}))
	require.Contains(t, out.String(), "Running (stale for 5m)")
	w.StaleSince = nil
	require.Contains(t, workspaceTable(&names{hidden: true}, w).rows[0], "Running")
}
