package cli

import (
	"context"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) rebuild() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use: "rebuild", Short: "Make everything that is derived from streams anew, and put it in its place", Args: exactly(),
		Long: `Compute what clusters say of workspaces, agents and objects anew from the first message of the streams on, compare it with what is stored, and put it
in its place in one transaction. What people want is not touched, nobody is told, and the system goes on meanwhile. Ctrl-C changes nothing.

With --check it only compares; it exits with 8 when there is a difference. Only administrators may rebuild, one at a time.`,
		Example: "  lockstep rebuild --check\n  lockstep rebuild -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			outcome, err := a.runRebuild(c.Context(), check)
			if err != nil {
				return err
			}
			return a.showRebuild(outcome)
		},
	}
	c.Flags().BoolVar(&check, "check", false, "only compare")
	return c
}

// runRebuild tells how far it is, at every tenth of a stream.
func (a *app) runRebuild(ctx context.Context, check bool) (*statev1.RebuildOutcome, error) {
	api, err := a.api()
	if err != nil {
		return nil, err
	}
	stream, err := api.Operations.Rebuild(ctx, connect.NewRequest(&statev1.RebuildRequest{Check: check}))
	if err != nil {
		return nil, err
	}
	defer stream.Close() //nolint:errcheck // it is over
	told := map[string]uint64{}
	for stream.Receive() {
		if outcome := stream.Msg().GetOutcome(); outcome != nil {
			return outcome, nil
		}
		p := stream.Msg().GetProgress()
		tenth := p.GetSequence() * 10 / max(p.GetLastSequence(), 1)
		if last, known := told[p.GetStream()]; known && tenth <= last {
			continue
		}
		told[p.GetStream()] = tenth
		if err := a.note("%-8s  %d of %d messages read", p.GetStream(), p.GetSequence(), p.GetLastSequence()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, fault.From(err)
	}
	return nil, fault.New(errcode.Unavailable, "the server ended the rebuild, nothing was changed: run it again")
}

// showRebuild prints the outcome. Differences that stay are an error.
func (a *app) showRebuild(outcome *statev1.RebuildOutcome) error {
	t := table{header: []string{"TABLE", "ROWS", "DIFFERENT"}}
	different := int64(0)
	for _, one := range outcome.GetTables() {
		different += one.GetDifferent()
		t.rows = append(t.rows, []string{one.GetName(), strconv.FormatInt(one.GetRows(), 10), strconv.FormatInt(one.GetDifferent(), 10)})
	}
	if err := a.print(outcome, t); err != nil {
		return err
	}
	if a.output == outputTable {
		for _, difference := range outcome.GetDifferences() {
			if err := a.write(difference + "\n"); err != nil {
				return err
			}
		}
	}
	switch {
	case different == 0:
		return a.note("everything is what the streams say")
	case outcome.GetReplaced():
		return a.note("%d rows were mended", different)
	default:
		return fault.New(errcode.FailedPrecondition, "%d rows are not what the streams say; lockstep rebuild mends them", different)
	}
}
