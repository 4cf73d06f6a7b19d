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
		Use:   "rebuild",
		Short: "Rebuild the read model of the state service from the streams",
		Args:  exactly(),
		Long: `Compute the reported state of workspaces, agents and objects from the first message of the streams,
compare it with the stored one, and replace that in one transaction. Desired states do not change, nothing is
published, and the system continues meanwhile. Ctrl-C changes nothing.

With --check, only compare: the exit status is 8 when there is a difference. Only administrators may rebuild, one at a
time.`,
		Example: "  lockstep rebuild --check\n  lockstep rebuild -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			outcome, err := a.runRebuild(c.Context(), check)
			if err != nil {
				return err
			}
			return a.showRebuild(stateRebuilt(outcome))
		},
	}
	c.Flags().BoolVar(&check, "check", false, "compare only")
	c.AddCommand(a.rebuildDeploys(), a.rebuildRunners())
	return c
}

func (a *app) runRebuild(ctx context.Context, check bool) (*statev1.RebuildOutcome, error) {
	api, err := a.api()
	if err != nil {
		return nil, err
	}
	stream, err := api.Operations.Rebuild(ctx, connect.NewRequest(&statev1.RebuildRequest{Check: check}))
	if err != nil {
		return nil, err
	}
	return awaitRebuild(a, stream, func(m *statev1.RebuildResponse) (*statev1.RebuildOutcome, rebuildProgress) {
		return m.GetOutcome(), m.GetProgress()
	})
}

// rebuildProgress is the position of a rebuild of any service.
type rebuildProgress interface {
	GetStream() string
	GetSequence() uint64
	GetLastSequence() uint64
}

// awaitRebuild returns the outcome of a rebuild, and notes the progress before it.
func awaitRebuild[Message, Outcome any](
	a *app, stream *connect.ServerStreamForClient[Message], read func(*Message) (*Outcome, rebuildProgress),
) (*Outcome, error) {
	defer stream.Close() //nolint:errcheck // read to its end
	noted := progress{}
	for stream.Receive() {
		outcome, at := read(stream.Msg())
		if outcome != nil {
			return outcome, nil
		}
		if err := noted.note(a, at); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, fault.From(err)
	}
	return nil, fault.New(errcode.Unavailable, "the server stopped the rebuild and changed nothing: run it again")
}

// rebuilt is the result of a rebuild.
type rebuilt struct {
	message     proto.Message
	tables      []rebuiltTable
	differences []string
	replaced    bool
	// command repairs the differences.
	command string
}

// rebuiltTable is the result for a table of any service.
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

// showRebuild prints the result. It returns an error when differences remain.
func (a *app) showRebuild(outcome rebuilt) error {
	t := table{header: []string{"TABLE", "ROWS", "DIFFERENT"}}
	different := int64(0)
	for _, one := range outcome.tables {
		different += one.GetDifferent()
		t.rows = append(t.rows,
			[]string{one.GetName(), strconv.FormatInt(one.GetRows(), 10), strconv.FormatInt(one.GetDifferent(), 10)})
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
		return a.note("the tables match the streams")
	case outcome.replaced:
		return a.note("repaired %d rows", different)
	default:
		return fault.New(errcode.FailedPrecondition, "%d rows differ from the streams: repair them with %s", different,
			outcome.command)
	}
}

// progress notes the progress at every tenth of a stream.
type progress map[string]uint64

func (p progress) note(a *app, at rebuildProgress) error {
	tenth := at.GetSequence() * 10 / max(at.GetLastSequence(), 1)
	if before, known := p[at.GetStream()]; known && tenth <= before {
		return nil
	}
	p[at.GetStream()] = tenth
	return a.note("%-8s  read %d of %d messages", at.GetStream(), at.GetSequence(), at.GetLastSequence())
}
