package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/dead"
)

func (a *app) dead() *cobra.Command {
	return group("dead", "List, retry and drop dead letters: messages that a service could not process",
		a.deadList(), a.deadShow(), a.deadRetry(), a.deadDrop())
}

// deadLetters connects to NATS and calls use with the queue of dead letters.
func (a *app) deadLetters(ctx context.Context, use func(context.Context, dead.Queue) error) error {
	return a.withNATS(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return use(ctx, dead.Queue{JetStream: js, Cell: topology.Cell(a.client.Cell)})
	})
}

// changeDeadLetters is deadLetters for a queue that also retries and drops letters.
func (a *app) changeDeadLetters(ctx context.Context, use func(context.Context, dead.Queue) error) error {
	api, err := a.api()
	if err != nil {
		return err
	}
	return a.deadLetters(ctx, func(ctx context.Context, queue dead.Queue) error {
		queue.Operations = api.Operations
		return use(ctx, queue)
	})
}

func (a *app) deadList() *cobra.Command {
	var selection dead.Selection
	c := &cobra.Command{
		Use:   "list [SUBJECT]",
		Short: "List dead letters, oldest first",
		Args:  atMost("SUBJECT"),
		Long: `List messages that a service could not process. SUBJECT selects the original subject below
lockstep.<cell>., such as applied.7.*. With -o json, print one message per line.`,
		Example: "  lockstep dead list\n  lockstep dead list 'observed.7.>' --service state -o json",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				selection.Subject = args[0]
			}
			t := table{header: []string{"SEQUENCE", "AGE", "SERVICE", "SUBJECT", "REASON"}}
			err := a.deadLetters(c.Context(), func(ctx context.Context, queue dead.Queue) error {
				return queue.Each(ctx, selection, func(l deadletter.Letter) error {
					if a.output == outputTable {
						t.rows = append(
							t.rows,
							[]string{
								strconv.FormatUint(l.Sequence, 10),
								age(timestamppb.New(l.Stored)),
								l.Service,
								a.relativeSubject(l.Subject),
								truncate(l.Reason),
							},
						)
						return nil
					}
					return a.printLetter(l, false)
				})
			})
			if err != nil || a.output != outputTable {
				return err
			}
			return a.printTable(t)
		},
	}
	c.Flags().StringVar(&selection.Service, "service", "", "only messages that this service could not process")
	return c
}

// truncate cuts a text for the table. Show prints all of it.
func truncate(text string) string {
	const most = 120
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// relativeSubject returns a subject without lockstep.<cell>.
func (a *app) relativeSubject(subject string) string {
	return strings.TrimPrefix(subject, topology.Root+"."+a.client.Cell+".")
}

// letterJSON is the JSON output of a letter.
type letterJSON struct {
	Sequence       uint64              `json:"sequence"`
	Stored         time.Time           `json:"stored"`
	Service        string              `json:"service"`
	Consumer       string              `json:"consumer"`
	Reason         string              `json:"reason"`
	Subject        string              `json:"subject"`
	Stream         string              `json:"stream"`
	StreamSequence uint64              `json:"stream_sequence"`
	OmittedBytes   int                 `json:"omitted_bytes,omitempty"`
	OmittedHeaders int                 `json:"omitted_headers,omitempty"`
	Header         map[string][]string `json:"header,omitempty"`
	// Data is set when the data is JSON, DataBase64 otherwise.
	Data       json.RawMessage `json:"data,omitempty"`
	DataBase64 []byte          `json:"data_base64,omitempty"`
}

func letterOf(l deadletter.Letter, full bool) letterJSON {
	out := letterJSON{
		Sequence:       l.Sequence,
		Stored:         l.Stored.UTC(),
		Service:        l.Service,
		Consumer:       l.Consumer,
		Reason:         l.Reason,
		Subject:        l.Subject,
		Stream:         l.Stream,
		StreamSequence: l.StreamSequence,
		OmittedBytes:   l.Omitted,
		OmittedHeaders: l.OmittedHeaders,
	}
	if !full {
		return out
	}
	out.Header = l.Header
	if json.Valid(l.Data) {
		out.Data = l.Data
	} else {
		out.DataBase64 = l.Data
	}
	return out
}

// printLetter prints a letter as JSON or YAML: a list entry on one line, a full letter with
// indentation.
func (a *app) printLetter(l deadletter.Letter, full bool) error {
	raw, err := json.Marshal(letterOf(l, full))
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	switch {
	case a.output == outputYAML && !full:
		if err := a.write("---\n"); err != nil {
			return err
		}
		return a.printJSON(raw)
	case full:
		return a.printJSON(raw)
	default:
		return a.write(string(raw) + "\n")
	}
}

func (a *app) deadShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SEQUENCE", Short: "Show a dead letter with its headers and data", Args: exactly("SEQUENCE"),
		RunE: func(c *cobra.Command, args []string) error {
			sequences, err := sequences(args)
			if err != nil {
				return err
			}
			return a.deadLetters(c.Context(), func(ctx context.Context, queue dead.Queue) error {
				return queue.Each(ctx, dead.Selection{Sequences: sequences}, func(l deadletter.Letter) error {
					if a.output != outputTable {
						return a.printLetter(l, true)
					}
					return a.write(letterText(l))
				})
			})
		},
	}
}

// letterText is the text output of a letter.
func letterText(l deadletter.Letter) string {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "%-12s %s\n", name, value) }
	line("Sequence", strconv.FormatUint(l.Sequence, 10))
	line("Stored", l.Stored.UTC().Format(time.RFC3339Nano))
	line("Service", l.Service)
	line("Consumer", l.Consumer)
	line("Reason", l.Reason)
	line("Subject", l.Subject)
	line("Stream", fmt.Sprintf("%s, sequence %d", l.Stream, l.StreamSequence))
	for _, name := range slices.Sorted(maps.Keys(l.Header)) {
		for _, value := range l.Header[name] {
			line("Header", name+": "+value)
		}
	}
	b.WriteString("\n")
	if l.OmittedHeaders > 0 {
		fmt.Fprintf(&b, "%d headers could not be stored: this message cannot be retried\n", l.OmittedHeaders)
	}
	var pretty bytes.Buffer
	switch {
	case l.Omitted > 0:
		fmt.Fprintf(&b, "the data of %d bytes was too large to be stored: this message cannot be retried\n", l.Omitted)
	case json.Indent(&pretty, l.Data, "", "  ") == nil:
		b.WriteString(pretty.String() + "\n")
	default:
		fmt.Fprintf(&b, "%q\n", l.Data)
	}
	return b.String()
}

// deadFlags select letters by sequence, or all of a subject.
type deadFlags struct {
	all              bool
	subject, service string
}

func (f *deadFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.all, "all", false, "all letters, or all that --subject and --service select")
	c.Flags().
		StringVar(&f.subject, "subject", "", "with --all, only messages of this subject below "+
			"lockstep.<cell>., such as applied.7.*")
	c.Flags().StringVar(&f.service, "service", "", "with --all, only messages that this service could not process")
}

func (f *deadFlags) selection(c *cobra.Command, args []string) (dead.Selection, error) {
	if f.all == (len(args) > 0) || !f.all && f.subject+f.service != "" {
		return dead.Selection{}, usageError{
			fmt.Errorf("set either SEQUENCE… or --all [--subject P] [--service S]: see `%s --help`", c.CommandPath()),
		}
	}
	numbers, err := sequences(args)
	return dead.Selection{Sequences: numbers, Subject: f.subject, Service: f.service}, err
}

func sequences(args []string) ([]uint64, error) {
	out := make([]uint64, len(args))
	for i, arg := range args {
		n, err := strconv.ParseUint(arg, 10, 64)
		if err != nil || n == 0 {
			return nil, fault.New(errcode.InvalidArgument, "SEQUENCE %q must be a positive number from `lockstep dead list`",
				arg)
		}
		out[i] = n
	}
	return out, nil
}

func (a *app) deadRetry() *cobra.Command {
	var flags deadFlags
	c := &cobra.Command{
		Use:   "retry SEQUENCE… | --all",
		Short: "Publish dead letters to their original subjects again",
		Args:  cobra.ArbitraryArgs,
		Long: `Publish the original messages with their headers to their subjects, oldest first, and remove each
letter when its message is stored. A message that fails again comes back with a new sequence. After an interruption
the last message may be published a second time; services ignore the duplicate. A message cannot be retried when its
data or headers could not be stored. The state service publishes and removes, for administrators only.`,
		Example: "  lockstep dead retry 12 13\n  lockstep dead retry --all --subject 'applied.7.*'",
		RunE: func(c *cobra.Command, args []string) error {
			selection, err := flags.selection(c, args)
			if err != nil {
				return err
			}
			retried, refused := 0, 0
			err = a.changeDeadLetters(c.Context(), func(ctx context.Context, queue dead.Queue) error {
				return queue.Retry(ctx, selection, func(_ deadletter.Letter, err error) error {
					if err != nil {
						refused++
						return a.note("%s", fault.From(err).Message)
					}
					retried++
					return nil
				})
			})
			if err := a.note("retried: %d", retried); err != nil {
				return err
			}
			if err == nil && refused > 0 {
				err = fault.New(errcode.FailedPrecondition, "cannot retry %d messages: see `lockstep dead show` and drop them",
					refused)
			}
			return err
		},
	}
	flags.add(c)
	return c
}

func (a *app) deadDrop() *cobra.Command {
	var flags deadFlags
	c := &cobra.Command{
		Use: "drop SEQUENCE… | --all", Short: "Remove dead letters permanently", Args: cobra.ArbitraryArgs,
		Long:    "Remove dead letters permanently. The state service removes them, for administrators only.",
		Example: "  lockstep dead drop 12 13\n  lockstep dead drop --all --subject 'observed.7.>'",
		RunE: func(c *cobra.Command, args []string) error {
			selection, err := flags.selection(c, args)
			if err != nil {
				return err
			}
			dropped := 0
			err = a.changeDeadLetters(c.Context(), func(ctx context.Context, queue dead.Queue) error {
				return queue.Drop(ctx, selection, func(deadletter.Letter) error { dropped++; return nil })
			})
			if err := a.note("dropped: %d", dropped); err != nil {
				return err
			}
			return err
		},
	}
	flags.add(c)
	return c
}
