package cli

import (
	"context"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

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
			return a.showRebuild(stateRebuilt(outcome))
		},
	}
	c.Flags().BoolVar(&check, "check", false, "only compare")
	c.AddCommand(a.rebuildDeploys())
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

// rebuilt is what a rebuild found.
type rebuilt struct {
	message     proto.Message
	tables      []rebuiltTable
	differences []string
	replaced    bool
	// command mends the differences.
	command string
}

// rebuiltTable is what a rebuild says of a table, whichever service it is of.
type rebuiltTable interface {
	GetName() string
	GetRows() int64
	GetDifferent() int64
}

func stateRebuilt(o *statev1.RebuildOutcome) rebuilt {
	r := rebuilt{message: o, differences: o.GetDifferences(), replaced: o.GetReplaced(), command: "lockstep rebuild"}
	for _, t := range o.GetTables() {
		r.tables = append(r.tables, t)
	}
	return r
}

// showRebuild prints the outcome. Differences that stay are an error.
func (a *app) showRebuild(outcome rebuilt) error {
	t := table{header: []string{"TABLE", "ROWS", "DIFFERENT"}}
	different := int64(0)
	for _, one := range outcome.tables {
		different += one.GetDifferent()
		t.rows = append(t.rows, []string{one.GetName(), strconv.FormatInt(one.GetRows(), 10), strconv.FormatInt(one.GetDifferent(), 10)})
	}
	if err := a.print(outcome.message, t); err != nil {
		return err
	}
	if a.output == outputTable {
		for _, difference := range outcome.differences {
			if err := a.write(difference + "\n"); err != nil {
				return err
			}
		}
	}
	switch {
	case different == 0:
		return a.note("everything is what the streams say")
	case outcome.replaced:
		return a.note("%d rows were mended", different)
	default:
		return fault.New(errcode.FailedPrecondition, "%d rows are not what the streams say; %s mends them", different, outcome.command)
	}
}

// tenths notes how far something is, at every tenth of a stream.
type tenths map[string]uint64

func (t tenths) note(a *app, stream string, sequence, last uint64) error {
	tenth := sequence * 10 / max(last, 1)
	if before, known := t[stream]; known && tenth <= before {
		return nil
	}
	t[stream] = tenth
	return a.note("%-8s  %d of %d messages read", stream, sequence, last)
}
