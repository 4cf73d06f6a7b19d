package cli

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
)

func (a *app) rebuildRunners() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use:   "runners",
		Short: "Rebuild the table of CI jobs of the runners service from the stream JOBS",
		Args:  exactly(),
		Long: `Compute the CI jobs from the first message of the stream JOBS, compare them with the stored ones, and replace
those in one transaction. Nothing is published again. Jobs change meanwhile, but not during the comparison. Ctrl-C
changes nothing.

With --check, only compare: the exit status is 8 when there is a difference. Only administrators may rebuild, one at a
time.`,
		Example: "  lockstep rebuild runners --check",
		RunE: func(c *cobra.Command, _ []string) error {
			outcome, err := a.runRebuildRunners(c.Context(), check)
			if err != nil {
				return err
			}
			return a.showRebuild(runnersRebuilt(outcome))
		},
	}
	c.Flags().BoolVar(&check, "check", false, "compare only")
	return c
}

func runnersRebuilt(o *runnersv1.RebuildOutcome) rebuilt {
	r := rebuilt{
		message:     o,
		differences: o.GetDifferences(),
		replaced:    o.GetReplaced(),
		command:     "lockstep rebuild runners",
	}
	for _, t := range o.GetTables() {
		r.tables = append(r.tables, t)
	}
	return r
}

func (a *app) runRebuildRunners(ctx context.Context, check bool) (*runnersv1.RebuildOutcome, error) {
	api, err := a.runnersAPI()
	if err != nil {
		return nil, err
	}
	stream, err := api.Operations.Rebuild(ctx, connect.NewRequest(&runnersv1.RebuildRequest{Check: check}))
	if err != nil {
		return nil, err
	}
	return awaitRebuild(a, stream, func(m *runnersv1.RebuildResponse) (*runnersv1.RebuildOutcome, rebuildProgress) {
		return m.GetOutcome(), m.GetProgress()
	})
}
