package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/replay"
)

func (a *app) events() *cobra.Command {
	return group("events", "Show live events", a.eventsTail())
}

// eventFilter selects events.
type eventFilter struct {
	types     []string
	workspace string
}

func (f *eventFilter) flags(c *cobra.Command) {
	c.Flags().
		StringArrayVar(&f.types, "type", nil, "only this type, such as workspace.* or state_changed; can be repeated")
	c.Flags().StringVar(&f.workspace, "workspace", "", "only events of this workspace, by name or id")
}

func (f *eventFilter) wants(subject string, e event.Event) bool {
	if f.workspace != "" && !strings.Contains(subject, "."+f.workspace) &&
		!strings.Contains(string(e.Data()), `"`+f.workspace+`"`) {
		return false
	}
	if len(f.types) == 0 {
		return true
	}
	return slices.ContainsFunc(f.types, func(pattern string) bool { return matchesType(pattern, e.Type()) })
}

func matchesType(pattern, eventType string) bool {
	short := shortType(eventType)
	ok, err := path.Match(pattern, short)
	return ok && err == nil || strings.HasSuffix(short, "."+pattern) || eventType == pattern
}

// resolve returns an error if a type or the workspace is unknown, and replaces the workspace's name by its id. Without
// an API, it takes any id.
func (f *eventFilter) resolve(ctx context.Context, a *app) error {
	for _, pattern := range f.types {
		// Facts about deploys have types of CDEvents.
		if !strings.HasPrefix(pattern, "dev.cdevents") && !slices.ContainsFunc(events.Types(),
			func(t events.Type) bool { return matchesType(pattern, t.Name) }) {
			return fault.New(errcode.InvalidArgument,
				"--type %q: no event has such a type; types are as in workspace.* or state_changed", pattern)
		}
	}
	workspace := reference(f.workspace)
	if f.workspace == "" || workspace.GetId() != "" && a.client.Server == "" {
		return nil
	}
	api, err := a.api()
	if err != nil {
		return err
	}
	response, err := api.Workspaces.GetWorkspace(ctx,
		connect.NewRequest(&statev1.GetWorkspaceRequest{Workspace: workspace}))
	if err != nil {
		return err
	}
	f.workspace = response.Msg.GetWorkspace().GetId()
	return nil
}

func (a *app) eventsTail() *cobra.Command {
	var filter eventFilter
	c := &cobra.Command{
		Use:   "tail [SUBJECT]",
		Short: "Show live events until Ctrl-C",
		Args:  atMost("SUBJECT"), ValidArgsFunction: completeSubjects,
		Long: `Show events as they are stored. SUBJECT selects a subject below lockstep.<cell>., such as workspace.> or
observed.7.>. For earlier events, see lockstep replay.`,
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
	if err := checkReadable(subject); err != nil {
		return err
	}
	if err := filter.resolve(ctx, a); err != nil {
		return err
	}
	return a.withNATS(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		begun := func() error { return a.note("listening on %s.%s.%s", topology.Root, a.client.Cell, subject) }
		take := func(m stored.Message) error { return a.showEvent(m.Subject, m.Header, m.Data, filter) }
		return replay.Follow(ctx, js, topology.Cell(a.client.Cell), subject, begun, a.noteOutage, take)
	})
}

// noteOutage notes that a stream of events is interrupted by an error, or with nil that it continues.
func (a *app) noteOutage(err error) {
	if err == nil {
		_ = a.note("connected again")
	} else {
		_ = a.note("connection lost: %s; trying again", strings.TrimSpace(fault.From(err).Message))
	}
}

// showEvent prints an event on a line, as text or as structured JSON.
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
	text := summary(raw)
	if !strings.Contains(text, "name=") {
		// The subject identifies what the event is about.
		_, about, _ := strings.Cut(a.relativeSubject(subject), ".")
		text = about + " " + strings.TrimPrefix(text, e.Subject())
	}
	return a.write(fmt.Sprintf("%s  %-34s %s\n",
		e.Time().Local().Format("15:04:05.000"), shortType(e.Type()), strings.TrimSpace(text)))
}

// shortType returns the type without the common prefix and the version.
func shortType(eventType string) string {
	return strings.TrimSuffix(strings.TrimPrefix(eventType, event.TypePrefix), ".v1")
}

// summary returns the important fields of an event in a fixed order.
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
	field(e.Data, "name", "from", "to", "target", "phase", "spec_replicas", "available_replicas", "desired_state",
		"desired_revision", "cause", "policy", "expires_at", "count", "attempt", "reason", "message", "unexpected")
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
		Use:   "replay SUBJECT",
		Short: "Print the history of a stream, one CloudEvent in JSON per line",
		Args:  atMost("SUBJECT"), ValidArgsFunction: completeSubjects,
		Long: `Print the messages of a subject below lockstep.<cell>., such as workspace.> or observed.7.>, in order,
one structured CloudEvent in JSON per line. The replay ends at the last message that the stream has at its start. A
time is RFC 3339, or a duration before now such as 2h.

With --through deploys, detect rollouts in the observations of watchers and compare the facts with the published ones:
+ was not published, - was published but is not detected, ~ was published with other fields.
The replay reads observations before the range, too, and asks the deploys service for the projects of
clusters. It publishes and stores nothing.`,
		Example: `  lockstep replay 'workspace.>' --from 2h
  lockstep replay 'observed.7.>' --from-seq 100 --to-seq 200 --positions
  lockstep replay 'applied.>' --pace original
  lockstep replay --through deploys --from 2h`,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if opts.Subject, err = replaySubject(c, args, through); err != nil {
				return err
			}
			if err := checkReadable(opts.Subject); err != nil {
				return err
			}
			if opts.FromTime, err = parseTime("--from", from, time.Now()); err != nil {
				return err
			}
			if opts.ToTime, err = parseTime("--to", to, time.Now()); err != nil {
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
	f.StringVar(&from, "from", "", "start at this time")
	f.StringVar(&to, "to", "", "end at this time")
	f.StringVar(&pace, "pace", "full", "pace: full or original")
	f.BoolVar(&positions, "positions", false, "add the extensions natssubject and natssequence")
	f.StringVar(&through, "through", "", "deploys: detect rollouts and compare the facts with the published ones")
	f.StringVar(&label, "group-label", "", "with --through: environments.label of the deploys service")
	durationFlag(c, &settle, "settle", 0, "with --through: environments.settle of the deploys service")
	_ = c.RegisterFlagCompletionFunc("through",
		cobra.FixedCompletions([]string{throughDeploys}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("pace",
		cobra.FixedCompletions([]string{"full", "original"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// checkReadable returns an error for the directory, which the key of operators cannot read.
func checkReadable(subject string) error {
	if family, _, _ := strings.Cut(subject, "."); family == topology.FamilyDirectory {
		return fault.New(errcode.InvalidArgument,
			"subject %q: the directory is for services only: list users, projects, agents and tokens through the API", subject)
	}
	return nil
}

func (a *app) printHistory(ctx context.Context, opts replay.Options, positions bool) error {
	return a.withNATS(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return replay.Run(ctx, js, topology.Cell(a.client.Cell), opts, func(m stored.Message) error {
			e, err := event.Decode(m.Header, m.Data)
			if err != nil {
				return a.note("%s, sequence %d: not a CloudEvent: %v", m.Subject, m.Sequence, err)
			}
			if positions {
				e.SetExtension("natssubject", m.Subject)
				e.SetExtension("natssequence", strconv.FormatUint(m.Sequence, 10))
			}
			raw, err := event.MarshalStructured(e)
			if err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			return a.write(string(raw) + "\n")
		})
	})
}
