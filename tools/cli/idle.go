package cli

import (
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// idleCountsProcessesFlag is the flag of the setting, of workspaces, templates and agents.
const idleCountsProcessesFlag = "idle-counts-processes"

// defaultExtension is how long a workspace is kept alive unless a flag says otherwise.
const defaultExtension = 4 * time.Hour

func (a *app) workspaceExtend() *cobra.Command {
	var by time.Duration
	c := &cobra.Command{
		Use:               "extend WORKSPACE",
		Short:             "Keep a running workspace alive, even if it is idle",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
		Long: `Keep a running workspace alive for a time from now, even if nobody is active in it. An extension never becomes
shorter, and ends when the workspace is stopped. Policies other than stop-after-idle still apply: "lockstep ws get"
shows which one is next.`,
		Example: `  lockstep ws extend hello --for 8h`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			r, err := api.Shares.ExtendWorkspace(c.Context(), connect.NewRequest(&statev1.ExtendWorkspaceRequest{
				Workspace: reference(args[0]), Duration: durationpb.New(by),
			}))
			if err != nil {
				return err
			}
			return a.print(r.Msg, table{header: []string{"FIELD", "VALUE"}, rows: idleState(r.Msg.GetWorkspace())})
		},
	}
	durationFlag(c, &by, "for", defaultExtension, "time from now, at most 24h")
	return c
}

// idleState returns the rows about activity in a workspace.
func idleState(w *statev1.Workspace) [][]string {
	activity, stops := "never", "never"
	if at := w.GetLastActivityAt(); at != nil {
		activity = age(at) + " ago"
	}
	if at := w.GetIdleStopsAt(); at != nil {
		stops = at.AsTime().Local().Format(time.DateTime)
	}
	rows := [][]string{{"last activity", activity}, {"stops if idle", stops}}
	if because := w.GetKeptAliveBecause(); because != "" {
		rows = append(rows, []string{"kept alive", "because " + because})
	}
	return rows
}

// sharedWith lists the people who may enter a workspace besides its owner.
func sharedWith(names *names, shares []*statev1.WorkspaceShare) string {
	if len(shares) == 0 {
		return "nobody"
	}
	texts := make([]string, len(shares))
	for i, s := range shares {
		texts[i] = names.user(s.GetUserId()) + " (" + sharedPort(s.GetPort()) + ")"
	}
	return strings.Join(texts, ", ")
}
