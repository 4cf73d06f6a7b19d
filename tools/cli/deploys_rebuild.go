package cli

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

func (a *app) rebuildDeploys() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use: "deploys", Short: "Make everything that is known of rollouts anew from what the clusters said", Args: exactly(),
		Long: `Compute workloads, rollouts, facts and environments anew from the first message of the stream OBSERVED on, compare them with what is stored, and put
them in its place in one transaction. Nothing is told twice, and the service goes on meanwhile. Ctrl-C changes nothing.

With --check it only compares; it exits with 8 when there is a difference. Only administrators may rebuild, one at a time.`,
		Example: "  lockstep rebuild deploys --check",
		RunE: func(c *cobra.Command, _ []string) error {
			outcome, err := a.runRebuildDeploys(c.Context(), check)
			if err != nil {
				return err
			}
			return a.showRebuild(deploysRebuilt(outcome))
		},
	}
	c.Flags().BoolVar(&check, "check", false, "only compare")
	return c
}

func deploysRebuilt(o *deploysv1.RebuildOutcome) rebuilt {
	r := rebuilt{message: o, differences: o.GetDifferences(), replaced: o.GetReplaced(), command: "lockstep rebuild deploys"}
	for _, t := range o.GetTables() {
		r.tables = append(r.tables, t)
	}
	return r
}

func (a *app) runRebuildDeploys(ctx context.Context, check bool) (*deploysv1.RebuildOutcome, error) {
	api, err := a.deploysAPI()
	if err != nil {
		return nil, err
	}
	stream, err := api.Operations.Rebuild(ctx, connect.NewRequest(&deploysv1.RebuildRequest{Check: check}))
	if err != nil {
		return nil, err
	}
	defer stream.Close() //nolint:errcheck // it is over
	told := tenths{}
	for stream.Receive() {
		if outcome := stream.Msg().GetOutcome(); outcome != nil {
			return outcome, nil
		}
		p := stream.Msg().GetProgress()
		if err := told.note(a, p.GetStream(), p.GetSequence(), p.GetLastSequence()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, fault.From(err)
	}
	return nil, fault.New(errcode.Unavailable, "the server ended the rebuild, nothing was changed: run it again")
}
