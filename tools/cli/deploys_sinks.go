package cli

import (
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/sink/catalog"
)

func (a *app) deploysSinks() *cobra.Command {
	manual := false
	c := &cobra.Command{
		Use: "sinks", Short: "Show where facts are carried to, and what is in their way", Args: exactly(),
		Long: `Show where facts are carried to, how far each sink is, and what is in its way. For administrators.

Sinks are described in a YAML file, the setting sinks_file of the service deploys: deploy/examples/sinks.yaml is one. --manual prints every setting that a sink may have.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if manual {
				text, err := catalog.Manual()
				if err != nil {
					return fault.From(err)
				}
				return a.write(text)
			}
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			response, err := api.Sinks.ListSinks(c.Context(), connect.NewRequest(&deploysv1.ListSinksRequest{}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, sinkTable(response.Msg.GetSinks()))
		},
	}
	c.Flags().BoolVar(&manual, "manual", false, "print every setting of a sink, for the file with the sinks")
	return c
}

func sinkTable(sinks []*deploysv1.Sink) table {
	t := table{header: []string{"NAME", "TYPE", "NEXT", "PENDING", "WAITING", "TROUBLE"}}
	for _, s := range sinks {
		trouble := s.GetTrouble()
		if trouble != "" && s.GetTroubleSince() != nil {
			trouble += " (for " + age(s.GetTroubleSince()) + ")"
		}
		t.rows = append(t.rows, []string{
			s.GetName(), s.GetType(), strconv.FormatUint(s.GetNextSequence(), 10), strconv.FormatUint(s.GetPending(), 10), strconv.FormatInt(s.GetWaiting(), 10), trouble,
		})
	}
	return t
}

func (a *app) deploysBackfill() *cobra.Command {
	var since string
	c := &cobra.Command{
		Use: "backfill SINK", Short: "Have a sink begin again at an earlier fact", Args: exactly("SINK"),
		Long: `Have a sink begin again at the first fact that is kept, or the first one since a time. What it has delivered already is delivered again with the same
idempotency key. For administrators.`,
		Example: "  lockstep deploys backfill warehouse\n  lockstep deploys backfill warehouse --since 24h",
		RunE: func(c *cobra.Command, args []string) error {
			request := &deploysv1.BackfillSinkRequest{Name: args[0]}
			from, err := moment("--since", since, time.Now())
			if err != nil {
				return err
			}
			if !from.IsZero() {
				request.Since = timestamppb.New(from)
			}
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			if _, err := api.Sinks.BackfillSink(c.Context(), connect.NewRequest(request)); err != nil {
				return err
			}
			return a.note("the sink %q begins again", args[0])
		},
	}
	c.Flags().StringVar(&since, "since", "", "begin with what was told since this time, or duration ago; default: everything that is kept")
	return c
}

func (a *app) deploysResend() *cobra.Command {
	return &cobra.Command{
		Use: "resend SINK FACT", Short: "Deliver one fact to one sink once more, now", Args: exactly("SINK", "FACT"),
		Long:    "Deliver one fact, by the id that `lockstep deploys get` shows, to one sink once more, whatever its filter and position. For administrators.",
		Example: "  lockstep deploys resend chat 8a1f0c…",
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			request := &deploysv1.ResendFactRequest{Sink: args[0], FactId: args[1]}
			if _, err := api.Sinks.ResendFact(c.Context(), connect.NewRequest(request)); err != nil {
				return err
			}
			return a.note("fact %s goes to the sink %q once more", args[1], args[0])
		},
	}
}
