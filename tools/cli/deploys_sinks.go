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
		Use:   "sinks",
		Short: "List the sinks of facts with their positions and errors",
		Args:  exactly(),
		Long: `List the sinks that facts are delivered to, with their positions and errors. Only administrators may
run this.

The setting sinks_file of the deploys service names the YAML file with the sinks;
deploy/examples/sinks.yaml is an example.
--manual prints every setting of a sink.`,
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
	c.Flags().BoolVar(&manual, "manual", false, "print every setting of a sink")
	return c
}

func sinkTable(sinks []*deploysv1.Sink) table {
	t := table{header: []string{"NAME", "TYPE", "NEXT", "PENDING", "WAITING", "ERROR"}}
	for _, s := range sinks {
		trouble := s.GetTrouble()
		if trouble != "" && s.GetTroubleSince() != nil {
			trouble += " (for " + age(s.GetTroubleSince()) + ")"
		}
		t.rows = append(t.rows, []string{
			s.GetName(),
			s.GetType(),
			strconv.FormatUint(s.GetNextSequence(), 10),
			strconv.FormatUint(s.GetPending(), 10),
			strconv.FormatInt(s.GetWaiting(), 10),
			trouble,
		})
	}
	return t
}

func (a *app) deploysBackfill() *cobra.Command {
	var since string
	c := &cobra.Command{
		Use:   "backfill SINK",
		Short: "Deliver facts to a sink again from an earlier one",
		Args:  exactly("SINK"),
		Long: `Move a sink back to the first stored fact, or to the first one since a time. Facts that it delivered
before are delivered again with the same idempotency key. Only administrators may run this.`,
		Example: "  lockstep deploys backfill warehouse\n  lockstep deploys backfill warehouse --since 24h",
		RunE: func(c *cobra.Command, args []string) error {
			request := &deploysv1.BackfillSinkRequest{Name: args[0]}
			from, err := parseTime("--since", since, time.Now())
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
			return a.note("moved sink %q back", args[0])
		},
	}
	c.Flags().
		StringVar(&since, "since", "", "deliver facts since this time, or duration ago; default: all stored facts")
	return c
}

func (a *app) deploysResend() *cobra.Command {
	return &cobra.Command{
		Use:   "resend SINK FACT",
		Short: "Deliver one fact to one sink again",
		Args:  exactly("SINK", "FACT"),
		Long: "Deliver a fact to a sink again, whatever its filter and position. " +
			"`lockstep deploys get` shows the ids of facts.\n" +
			"Only administrators may run this.",
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
			return a.note("delivering fact %s to sink %q again", args[1], args[0])
		},
	}
}
