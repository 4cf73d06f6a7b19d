package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/replay"
)

const (
	tailBuffer     = 1024
	connectTimeout = 5 * time.Second
)

// nats connects to the streams as an operator.
func (a *app) nats(ctx context.Context) (*natsconn.Conn, error) {
	if a.client.NATSURL == "" {
		return nil, fault.New(errcode.InvalidArgument,
			"no NATS is configured: give --nats-url and --nats-seed-file, LOCKSTEP_NATS_URL and LOCKSTEP_NATS_SEED_FILE, or nats_url and nats_seed_file in %s", a.clientFile)
	}
	cfg := natsconn.DefaultConfig()
	cfg.URL = config.URL(a.client.NATSURL)
	cfg.Name = "lockstep"
	cfg.InboxPrefix = natsauth.InboxPrefix(natsauth.PrincipalOperator)
	cfg.TLS.CAFile = a.client.NATSCAFile
	if a.client.NATSSeedFile != "" {
		cfg.NKeySeedFile = config.SecretFile(a.client.NATSSeedFile)
	}
	conn, err := natsconn.Connect(ctx, cfg, a.logger)
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "NATS at %s: %v", a.client.NATSURL, err)
	}
	wait, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := conn.FlushWithContext(wait); err != nil {
		why := conn.Check(ctx)
		leave(conn)
		return nil, fault.Wrap(err, errcode.Unavailable, "NATS at %s cannot be reached: %v", a.client.NATSURL, errors.Join(why, err))
	}
	return conn, nil
}

// leave closes the connection for good.
func leave(conn *natsconn.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	_ = conn.Shutdown(ctx) // what was wanted has been read
}

func (a *app) events() *cobra.Command {
	return group("events", "Events as they happen", a.eventsTail())
}

// eventFilter selects events.
type eventFilter struct {
	types     []string
	workspace string
}

func (f *eventFilter) flags(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.types, "type", nil, "only events whose type ends in this, such as workspace.* or state_changed; may be repeated")
	c.Flags().StringVar(&f.workspace, "workspace", "", "only events of this workspace id")
}

func (f *eventFilter) wants(subject string, e event.Event) bool {
	if f.workspace != "" && !strings.Contains(subject, "."+f.workspace) && !strings.Contains(string(e.Data()), `"`+f.workspace+`"`) {
		return false
	}
	if len(f.types) == 0 {
		return true
	}
	short := shortType(e.Type())
	for _, pattern := range f.types {
		if ok, err := path.Match(pattern, short); ok && err == nil || strings.HasSuffix(short, "."+pattern) || e.Type() == pattern {
			return true
		}
	}
	return false
}

func (a *app) eventsTail() *cobra.Command {
	var filter eventFilter
	c := &cobra.Command{
		Use: "tail [SUBJECT]", Short: "Show events as they happen, until Ctrl-C", Args: cobra.MaximumNArgs(1),
		Long: `Show events as they happen, all or those on a subject below lockstep.<cell>., such as workspace.> or observed.7.>.
What happened before is for replay.`,
		Example: "  lockstep events tail 'workspace.>'\n  lockstep events tail --type state_changed -o json",
		RunE: func(c *cobra.Command, args []string) error {
			subject := ">"
			if len(args) == 1 {
				subject = args[0]
			}
			return a.tail(c.Context(), subject, filter)
		},
	}
	filter.flags(c)
	return c
}

func (a *app) tail(ctx context.Context, subject string, filter eventFilter) error {
	conn, err := a.nats(ctx)
	if err != nil {
		return err
	}
	defer leave(conn)
	cell := topology.Cell(a.client.Cell)
	messages := make(chan *nats.Msg, tailBuffer)
	sub, err := conn.ChanSubscribe(topology.Root+"."+a.client.Cell+"."+subject, messages)
	if err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "subject %q: %v", subject, err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection closes next
	if err := a.note("listening on %s.%s.%s", topology.Root, cell, subject); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-messages:
			// The copy for the history would show every desired state twice.
			if strings.HasPrefix(msg.Subject, cell.Prefix(topology.FamilyDesiredLog)+".") && subject == ">" {
				continue
			}
			if err := a.showEvent(msg.Subject, msg.Header, msg.Data, filter); err != nil {
				return err
			}
		}
	}
}

// showEvent prints an event as a line: for people, or as structured JSON.
func (a *app) showEvent(subject string, header nats.Header, data []byte, filter eventFilter) error {
	e, err := event.Decode(header, data)
	if err != nil {
		return a.note("%s: not a CloudEvent: %v", subject, err)
	}
	if !filter.wants(subject, e) {
		return nil
	}
	raw, err := event.MarshalStructured(e)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if a.output != outputTable {
		return a.write(string(raw) + "\n")
	}
	return a.write(fmt.Sprintf("%s  %-34s %s\n", e.Time().Local().Format("15:04:05.000"), shortType(e.Type()), summary(raw)))
}

// shortType is the type without what all have in common.
func shortType(eventType string) string {
	return strings.TrimSuffix(strings.TrimPrefix(eventType, event.TypePrefix), ".v1")
}

// summary is an event's data as words for people: the fields that tell most, in a fixed order.
func summary(cloudEvent []byte) string {
	var e struct {
		Subject string         `json:"subject"`
		Data    map[string]any `json:"data"`
	}
	if err := json.Unmarshal(cloudEvent, &e); err != nil {
		return ""
	}
	object, _ := e.Data["object"].(map[string]any)
	var parts []string
	field := func(from map[string]any, keys ...string) {
		for _, key := range keys {
			switch v := from[key].(type) {
			case string:
				if v != "" {
					parts = append(parts, key+"="+v)
				}
			case float64:
				parts = append(parts, key+"="+strconv.FormatFloat(v, 'f', -1, 64))
			case bool:
				if v {
					parts = append(parts, key)
				}
			}
		}
	}
	field(object, "namespace", "name", "verb", "resource_version")
	field(e.Data, "name", "from", "to", "target", "phase", "spec_replicas", "available_replicas", "desired_state", "desired_revision", "cause", "policy", "expires_at", "count", "attempt", "reason", "message", "unexpected")
	if len(parts) == 0 {
		return e.Subject
	}
	return strings.Join(parts, " ")
}

func (a *app) replay() *cobra.Command {
	var opts replay.Options
	var from, to, pace, through, label string
	var settle time.Duration
	var positions bool
	c := &cobra.Command{
		Use: "replay SUBJECT", Short: "Print the history of a stream again, one CloudEvent in JSON a line", Args: cobra.MaximumNArgs(1),
		Long: `Print what happened on a subject below lockstep.<cell>., such as workspace.> or observed.7.>, in order, one structured CloudEvent in
JSON a line. It ends where the stream ended when it began. Times are RFC 3339 or a duration back from now, such as 2h.

With --through deploys it prints what the detection of rollouts says over a stretch of what watchers observed, by default all of it, and how that differs from what
was published (it reads what came before the stretch, too, and asks the service whose clusters are; what agents of other projects say of them is refused): + was not published, - was published and is not said now, ~ was published otherwise. Nothing is published or stored.`,
		Example: `  lockstep replay 'workspace.>' --from 2h
  lockstep replay 'observed.7.>' --from-seq 100 --to-seq 200 --positions
  lockstep replay 'applied.>' --pace original
  lockstep replay --through deploys --from 2h`,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if opts.Subject, err = replayed(c, args, through); err != nil {
				return err
			}
			if opts.FromTime, err = moment("--from", from, time.Now()); err != nil {
				return err
			}
			if opts.ToTime, err = moment("--to", to, time.Now()); err != nil {
				return err
			}
			switch pace {
			case "full":
			case "original":
				opts.OriginalPace = true
			default:
				return fault.New(errcode.InvalidArgument, "--pace %q must be full or original", pace)
			}
			if through != "" {
				return a.printDetection(c.Context(), opts, environment.Rules{Label: label, Settle: settle})
			}
			return a.printHistory(c.Context(), opts, positions)
		},
	}
	f := c.Flags()
	f.Uint64Var(&opts.FromSequence, "from-seq", 0, "first sequence on the stream")
	f.Uint64Var(&opts.ToSequence, "to-seq", 0, "last sequence on the stream")
	f.StringVar(&from, "from", "", "begin at this time")
	f.StringVar(&to, "to", "", "end at this time")
	f.StringVar(&pace, "pace", "full", "full or original speed")
	f.BoolVar(&positions, "positions", false, "add the extensions natssubject and natssequence")
	f.StringVar(&through, "through", "", "deploys: print what the detection of rollouts says, and how that differs from what was published")
	f.StringVar(&label, "group-label", "", "with --through: environments.label of the deploys service; default: its own default")
	f.DurationVar(&settle, "settle", 0, "with --through: environments.settle of the deploys service; default: its own default")
	_ = c.RegisterFlagCompletionFunc("through", cobra.FixedCompletions([]string{throughDeploys}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("pace", cobra.FixedCompletions([]string{"full", "original"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (a *app) printHistory(ctx context.Context, opts replay.Options, positions bool) error {
	conn, err := a.nats(ctx)
	if err != nil {
		return err
	}
	defer leave(conn)
	js, err := conn.JetStream()
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return replay.Run(ctx, js, topology.Cell(a.client.Cell), opts, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		e, err := event.Decode(msg.Headers(), msg.Data())
		if err != nil {
			return a.note("%s, sequence %d: not a CloudEvent: %v", msg.Subject(), meta.Sequence.Stream, err)
		}
		if positions {
			e.SetExtension("natssubject", msg.Subject())
			e.SetExtension("natssequence", strconv.FormatUint(meta.Sequence.Stream, 10))
		}
		raw, err := event.MarshalStructured(e)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		return a.write(string(raw) + "\n")
	})
}

// moment reads a time, or a duration back from now; empty is the zero time.
func moment(flag, value string, now time.Time) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(value); err == nil {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}, fault.New(errcode.InvalidArgument, "%s %q must be a time such as 2026-01-02T15:04:05Z or a duration such as 2h", flag, value)
	}
	return t, nil
}
