package cli

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

func (a *app) rebuildDeploys() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use:   "deploys",
		Short: "Rebuild the tables of the deploys service from the stream OBSERVED",
		Args:  exactly(),
		Long: `Compute workloads, rollouts, facts and environments from the first message of the stream OBSERVED,
compare them with the stored ones, and replace those in one transaction. Nothing is published again, and the service
continues meanwhile. Ctrl-C changes nothing.

With --check, only compare: the exit status is 8 when there is a difference. Only administrators may rebuild, one at a
time.`,
		Example: "  lockstep rebuild deploys --check",
		RunE: func(c *cobra.Command, _ []string) error {
			outcome, err := a.runRebuildDeploys(c.Context(), check)
			if err != nil {
				return err
			}
			return a.showRebuild(deploysRebuilt(outcome))
		},
	}
	c.Flags().BoolVar(&check, "check", false, "compare only")
	return c
}

func deploysRebuilt(o *deploysv1.RebuildOutcome) rebuilt {
	r := rebuilt{
		message:     o,
		differences: o.GetDifferences(),
		replaced:    o.GetReplaced(),
		command:     "lockstep rebuild deploys",
	}
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
	return awaitRebuild(a, stream, func(m *deploysv1.RebuildResponse) (*deploysv1.RebuildOutcome, rebuildProgress) {
		return m.GetOutcome(), m.GetProgress()
	})
}
