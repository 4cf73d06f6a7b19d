package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// resyncPoll is the poll interval of --wait.
const resyncPoll = 250 * time.Millisecond

// configurationFlags are the flags that change the configuration of an agent.
type configurationFlags struct {
	durations map[string]*time.Duration
	limits    map[string]*int32
	targets   []string
	noTargets bool
	reset     []string

	workspaces workspaceFlags
}

const relayTargetFlag, noRelayTargetsFlag = "relay-target", "no-relay-targets"

func (f *configurationFlags) add(c *cobra.Command) {
	f.durations, f.limits = map[string]*time.Duration{}, map[string]*int32{}
	for _, d := range []struct{ flag, help string }{
		{"full-resync-interval", "time between full resyncs (1h unless set)"},
		{"unschedulable-patience", "how long a pod may be unschedulable before its workspace fails (5m unless set)"},
		{"stop-patience", "how long a stop may take before its workspace fails (5m unless set)"},
		{"termination-patience", "how long a deletion may take before its workspace has an error (5m unless set)"},
		{"progress-deadline", "how long a workspace may take to become ready before it fails; " +
			"whole seconds, 1s to 24h (10m unless set)"},
		{"stop-after-running", "time from the start of a workspace until it is stopped"},
		{"stop-after-idle", "time without activity until a workspace is stopped, at least 2m"},
		{"terminate-after-stopped", "time from the stop of a workspace until it is terminated"},
		{"max-age", "time from the creation of a workspace until it is terminated"},
		{"expiry-warning", "time between the warning of the user and one of these (15m unless set)"},
	} {
		f.durations[d.flag] = new(time.Duration)
		durationFlag(c, f.durations[d.flag], d.flag, 0, d.help)
	}
	f.limits["max-workspaces"] = c.Flags().
		Int32("max-workspaces", 0, "maximum number of workspaces of the agent, without terminated ones")
	f.limits["max-workspaces-per-user"] = c.Flags().
		Int32("max-workspaces-per-user", 0, "maximum number of workspaces of one user")
	c.Flags().
		StringArrayVar(&f.targets, relayTargetFlag, nil, "target NAME=HOST:PORT in the network of the agent; "+
			"can be repeated and replaces all targets")
	c.Flags().
		BoolVar(&f.noTargets, noRelayTargetsFlag, false, "remove all targets: only the Kubernetes API can be "+
			"reached through the relay")
	f.workspaces.add(c)
	c.Flags().StringSliceVar(&f.reset, "reset", nil,
		"settings that take the value of the cell, or the default, again, such as max-cpu,private-ranges")
}

// change returns the configuration on the command line, and false when there is none.
func (f *configurationFlags) change(c *cobra.Command) (*statev1.AgentConfiguration, bool, error) {
	out, given := &statev1.AgentConfiguration{}, false
	for flag, to := range map[string]**durationpb.Duration{
		"full-resync-interval": &out.FullResyncInterval, "unschedulable-patience": &out.UnschedulablePatience,
		"stop-patience":      &out.StopPatience,
		"stop-after-running": &out.StopAfterRunning, "terminate-after-stopped": &out.TerminateAfterStopped,
		"stop-after-idle": &out.StopAfterIdle, "max-age": &out.MaxAge, "expiry-warning": &out.ExpiryWarning,
		"termination-patience": &out.TerminationPatience, "progress-deadline": &out.ProgressDeadline,
	} {
		if c.Flags().Changed(flag) {
			*to, given = durationpb.New(*f.durations[flag]), true
		}
	}
	for flag, to := range map[string]**int32{
		"max-workspaces": &out.MaxWorkspaces, "max-workspaces-per-user": &out.MaxWorkspacesPerUser,
	} {
		if c.Flags().Changed(flag) {
			*to, given = f.limits[flag], true
		}
	}
	if f.noTargets || c.Flags().Changed(relayTargetFlag) {
		targets, err := f.relayTargets()
		if err != nil {
			return nil, false, err
		}
		out.RelayTargets, given = targets, true
	}
	for i, name := range f.reset {
		f.reset[i] = strings.ReplaceAll(name, "-", "_")
	}
	given = f.workspaces.change(c, out) || given || len(f.reset) > 0
	return out, given, nil
}

func (f *configurationFlags) relayTargets() (*statev1.RelayTargets, error) {
	if f.noTargets && len(f.targets) > 0 {
		return nil, fault.New(errcode.InvalidArgument, "set either --%s or --%s, not both", relayTargetFlag,
			noRelayTargetsFlag)
	}
	out := &statev1.RelayTargets{}
	for _, target := range f.targets {
		name, address, both := strings.Cut(target, "=")
		if !both {
			return nil, fault.New(errcode.InvalidArgument, "--%s %q must be NAME=HOST:PORT, such as shop=shop.apps.svc:80",
				relayTargetFlag, target)
		}
		out.Targets = append(out.Targets, &statev1.RelayTarget{Name: name, Address: address})
	}
	return out, nil
}

func (a *app) agentConfigure() *cobra.Command {
	var flags configurationFlags
	c := &cobra.Command{
		Use:               "configure AGENT",
		Short:             "Set the configuration of an agent and the policies of its workspaces",
		Args:              exactly("AGENT"),
		ValidArgsFunction: a.completeAgents,
		Long: `Set the configuration of an agent and the policies of its workspaces. The change takes effect at once;
settings without a flag keep their value. A duration is 90s, 8h or 720h; 0 means never. A limit of -1 means unlimited.

A user is warned before a policy stops or terminates a workspace, and --expiry-warning is the least time between both.
This is also true for workspaces that are already past a new policy.

Some settings default to those of the cell, section workspace of the state service's configuration: the termination
patience, the sizes, the storage class, the resource quota, the progress deadline, the peers and the networks. An agent
overrides the cell in both directions: its maximums may be higher, and its networks more open. A change of the resource
quota, the progress deadline, the peers or the networks is applied to all workspaces at once. Workspaces above a lowered
maximum go on, and may become smaller. A default above the maximum is the maximum.

A peer is NAMESPACE:LABEL=VALUE, with further labels after further colons, or NAMESPACE for all pods of the namespace.
{agent_id} stands for the id of the agent. A list of peers or networks replaces the one of the cell, or the default:
include the relay agent in ingress peers, and the metadata addresses of clouds in private ranges.

Relay targets can be reached through the relay besides the Kubernetes API. The relay agent's own configuration must
allow their addresses, too.`,
		Example: `  lockstep agent configure local --max-workspaces-per-user 3
  lockstep agent configure local --relay-target shop=shop.apps.svc:80 --relay-target db=db.apps.svc:5432
  lockstep agent configure local --max-cpu 4 --max-memory 16Gi --egress-allowed 10.1.2.0/24
  lockstep agent configure local --reset max-cpu,max-memory
  lockstep agent configure local --stop-after-running 10h --terminate-after-stopped 720h --expiry-warning 30m`,
		RunE: func(c *cobra.Command, args []string) error {
			change, given, err := flags.change(c)
			if err != nil {
				return err
			}
			if !given {
				return fault.New(errcode.InvalidArgument,
					"no setting is given: see `%s --help`; `lockstep agent get` shows the configuration", c.CommandPath())
			}
			api, id, err := a.agent(c.Context(), args[0])
			if err != nil {
				return err
			}
			response, err := api.Agents.ConfigureAgent(c.Context(),
				connect.NewRequest(&statev1.ConfigureAgentRequest{Id: id, Configuration: change, Reset_: flags.reset}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, agentFields(a.names(c.Context(), api), response.Msg.GetAgent()))
		},
	}
	flags.add(c)
	return c
}

func (a *app) agentResync() *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use:               "resync AGENT",
		Short:             "Make an agent report all objects of its cluster and apply all desired states again",
		Args:              exactly("AGENT"),
		ValidArgsFunction: a.completeAgents,
		RunE: func(c *cobra.Command, args []string) error {
			api, id, err := a.agent(c.Context(), args[0])
			if err != nil {
				return err
			}
			response, err := api.Agents.RequestResync(c.Context(), connect.NewRequest(&statev1.RequestResyncRequest{Id: id}))
			if err != nil {
				return err
			}
			if !wait {
				if a.output != outputTable {
					return a.print(response.Msg, table{})
				}
				return a.write(fmt.Sprintf("requested: `lockstep agent get %s` shows the last resync\n", args[0]))
			}
			return a.awaitResync(c.Context(), api, id, response.Msg.GetNonce())
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until the report is complete, and show it")
	return c
}

// awaitResync waits for the end of a resync with the nonce, or a later one: one resync answers all
// requests that wait for it.
func (a *app) awaitResync(ctx context.Context, api *client.API, id int64, nonce string) error {
	ticker := time.NewTicker(resyncPoll)
	defer ticker.Stop()
	for {
		response, err := api.Agents.GetAgent(ctx, connect.NewRequest(&statev1.GetAgentRequest{Id: id}))
		if err != nil {
			return err
		}
		if last := response.Msg.GetAgent().GetLastResync(); answers(last, nonce) {
			if err := a.print(last, resyncTable(last)); err != nil {
				return err
			}
			if last.GetOutcome() != resyncComplete {
				return fault.New(errcode.Unavailable, "the resync is incomplete: run the command again")
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// Outcomes of a resync.
const (
	resyncOpen     = "open"
	resyncComplete = "complete"
)

// answers reports whether a resync has ended that answers the nonce, or a later one. Nonces begin
// with a time.
func answers(r *statev1.Resync, nonce string) bool {
	return r.GetNonce() != "" && r.GetNonce() >= nonce && r.GetOutcome() != resyncOpen
}

func resyncTable(r *statev1.Resync) table {
	took := "-"
	if r.GetEndedAt() != nil {
		took = r.GetEndedAt().AsTime().Sub(r.GetBegunAt().AsTime()).Round(time.Millisecond).String()
	}
	return table{header: []string{"RESYNC", "CAUSE", "OUTCOME", "OBJECTS", "DURATION"}, rows: [][]string{
		{r.GetId(), r.GetCause(), r.GetOutcome(), strconv.FormatInt(r.GetCount(), 10), took},
	}}
}

// agentFields returns all fields of an agent.
func agentFields(names *names, g *statev1.Agent) table {
	c := g.GetConfiguration()
	state := agentState(g)
	if reason := g.GetBlock().GetReason(); reason != "" {
		state += ": it " + reason
	}
	resync := "none yet"
	if r := g.GetLastResync(); r != nil {
		resync = fmt.Sprintf("%s, %d objects, for %s, %s ago", r.GetOutcome(), r.GetCount(), r.GetCause(),
			age(r.GetBegunAt()))
	}
	rows := [][]string{
		{"name", g.GetName()},
		{"id", strconv.FormatInt(g.GetId(), 10)},
		{"state", state},
		{"project", names.project(g.GetProjectId())},
		{"cluster", g.GetClusterUid()},
		{"last seen", age(g.GetLastSeenAt())},
		{"tokens", tokens(g.GetPreviousTokenValidUntil())},
		{"clock", clockOffset(g.GetClockOffset().AsDuration())},
		{"stored objects", strconv.FormatInt(g.GetObjects(), 10)},
		{"last resync", resync},
		{"full resync interval", shortDuration(c.GetFullResyncInterval())},
		{"unschedulable patience", orNever(c.GetUnschedulablePatience())},
		{"stop patience", orNever(c.GetStopPatience())},
		{"termination patience", orNever(c.GetTerminationPatience())},
		{"max workspaces", orUnlimited(c.GetMaxWorkspaces())},
		{"max workspaces per user", orUnlimited(c.GetMaxWorkspacesPerUser())},
		{"stop after running", orNever(c.GetStopAfterRunning())},
		{"stop after idle", orNever(c.GetStopAfterIdle())},
		{"terminate after stopped", orNever(c.GetTerminateAfterStopped())},
		{"max age", orNever(c.GetMaxAge())},
		{"expiry warning", orNever(c.GetExpiryWarning())},
		{"relay targets", relayTargets(c.GetRelayTargets().GetTargets())},
		{"configuration revision", strconv.FormatInt(c.GetRevision(), 10)},
		{"own settings", cmp.Or(strings.ReplaceAll(strings.Join(g.GetOwnSettings(), ", "), "_", "-"), "none")},
	}
	return table{header: []string{"FIELD", "VALUE"}, rows: append(rows, workspaceSettings(c)...)}
}

// tokens describes the tokens of an agent whose token before the last rotation ends at a time.
func tokens(end *timestamppb.Timestamp) string {
	if end == nil {
		return "1"
	}
	return "2, the older one until " + end.AsTime().Format(time.RFC3339)
}

// clockOffset describes how far a clock is ahead of the control plane's.
func clockOffset(offset time.Duration) string {
	switch {
	case offset.Abs() <= time.Minute:
		return "right"
	case offset > 0:
		return offset.Round(time.Second).String() + " ahead"
	default:
		return (-offset).Round(time.Second).String() + " behind"
	}
}

func relayTargets(targets []*statev1.RelayTarget) string {
	if len(targets) == 0 {
		return "none"
	}
	texts := make([]string, len(targets))
	for i, t := range targets {
		texts[i] = t.GetName() + "=" + t.GetAddress()
	}
	return strings.Join(texts, ", ")
}

func orNever(d *durationpb.Duration) string {
	if d.AsDuration() == 0 {
		return "never"
	}
	return shortDuration(d)
}

// shortDuration returns a duration without zero units: 8h for 8h0m0s.
func shortDuration(d *durationpb.Duration) string {
	text := d.AsDuration().String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

func orUnlimited(n int32) string {
	if n < 0 {
		return "unlimited"
	}
	return strconv.FormatInt(int64(n), 10)
}

// expiry returns the time and the policy of the end of a workspace.
func expiry(w *statev1.Workspace, now time.Time) string {
	if w.GetExpiresAt() == nil {
		return "never"
	}
	at := w.GetExpiresAt().AsTime()
	in := "overdue"
	if left := at.Sub(now); left > 0 {
		in = "in " + shortDuration(durationpb.New(left.Round(time.Second)))
	}
	what := "deleted with its volume"
	if strings.HasPrefix(w.GetExpiryPolicy(), "stop_") {
		what = "stopped"
	}
	return fmt.Sprintf("%s (%s): %s by %s", in, at.Local().Format("2006-01-02 15:04:05"), what, w.GetExpiryPolicy())
}
