// Package slack is the sink that keeps one message for each rollout in a channel, posted when it
// begins and edited as it goes.
//
// The message says how the rollout is: the last fact that changed that, the pods as they are
// counted now, and whether the old ones are gone. What is not of a rollout or an environment is a
// message of its own. Facts that waited are one edit, and an edit that would change nothing is not
// made: Slack takes about one message a second for a channel. A 429 is obeyed.
//
// A message carries its rollout as metadata. Slack knows no idempotency keys; so the sink notes
// that it is about to post, and after a crash or a lost answer looks for the message in the
// channel's history first (scope channels:history or groups:history, beside chat:write). Without
// that scope it posts again: twice is better than never.
//
// What Slack refuses for its content puts the fact on DEAD. A channel or token that it does not
// know is tried again: both are for people to mend.
package slack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/slack-go/slack"

	"lockstep.internal/libs/config"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

// Config of a channel.
type Config struct {
	Channel   string        `yaml:"channel" help:"id of the channel, such as C0123456789; the app must be a member"`
	TokenFile config.Secret `yaml:"token_file" help:"file with the app's bot token, with the scopes chat:write and channels:history (groups:history for a private channel)"`
	APIURL    config.URL    `yaml:"api_url" help:"Slack's API"`
}

// DefaultConfig is what Config is unless told.
func DefaultConfig() Config { return Config{APIURL: "https://slack.com/api"} }

// Missing says which required settings are not given.
func (c Config) Missing() []string {
	var missing []string
	if c.Channel == "" {
		missing = append(missing, "channel")
	}
	if !c.TokenFile.IsSet() {
		missing = append(missing, "token_file")
	}
	return missing
}

// Validate says what is wrong with what is given.
func (c Config) Validate() []error {
	if u, err := url.Parse(c.APIURL.Reveal()); err != nil || u.Host == "" || u.User != nil {
		return []error{config.Invalid("api_url", "is no URL such as https://slack.com/api")}
	}
	return nil
}

// Limits of Slack for one channel.
func Limits() []sink.Limit { return []sink.Limit{{Count: 1, Window: 1100 * time.Millisecond}} }

// Destination names what the limits are shared by.
func (c Config) Destination() string { return "slack/" + c.APIURL.String() + "/" + c.Channel }

// Facts are those that messages are made of, unless a filter names others.
func Facts() []string {
	return []string{
		"started", "progressed", "completed", "drained", "stalled", "recovered", "blocked", "unblocked", "paused", "resumed", "superseded", "cancelled",
		"unknown", "partition_reached", "environment_started", "environment_ready", "environment_failed", "environment_removed",
	}
}

const defaultText = `{{$f := .Fact}}{{if or (eq $f "completed") (eq $f "environment_ready")}}:white_check_mark:` +
	`{{else if or (eq $f "stalled") (eq $f "blocked") (eq $f "environment_failed")}}:warning:` +
	`{{else if or (eq $f "cancelled") (eq $f "unknown") (eq $f "superseded")}}:heavy_minus_sign:{{else}}:arrows_counterclockwise:{{end}}` +
	` *{{if .Group}}{{text .Group}}{{else}}{{text .Namespace}}/{{text .Name}}{{end}}* {{title $f}}` +
	`{{if .Revision}} (revision {{.Revision}}{{if ne .Change "updated"}}, {{title .Change}}{{end}}){{end}}` +
	`{{if .Duration}} after {{duration .Duration}}{{end}}{{if .Drained}}, old pods gone{{end}}` +
	`{{if and .Desired (ne $f "completed")}} · {{.Updated}}/{{.Desired}} new, {{.Available}} available{{end}}` +
	`{{if .URL}}
<{{.URL}}>{{end}}{{if .Message}}{{if or (eq $f "stalled") (eq $f "blocked") (eq $f "environment_failed")}}
>{{text .Message}}{{end}}{{end}}{{range .Images}}
` + "`{{text .}}`{{end}}"

// longestText is what Slack shows without folding, in characters.
const longestText = 3900

// Options beside the configuration.
type Options struct {
	// Template of the message; nil for the default.
	Template *sink.Template
	// Client to send with, which limits and guards. Required.
	Client *http.Client
	// Limiter of the client. Required.
	Limiter *sink.Limiter
}

// Sink keeps messages in one channel.
type Sink struct {
	cfg      Config
	options  Options
	template *sink.Template
}

// New makes the sink.
func New(cfg Config, o Options) (*Sink, error) {
	s := &Sink{cfg: cfg, options: o, template: o.Template}
	if s.template == nil {
		var err error
		if s.template, err = sink.ParseTemplate(defaultText, Escape); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Escape makes text harmless in a message: it mentions nobody and links nothing.
func Escape(text string) string { return escapes.Replace(text) }

var escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'", "\n", " ", "\r", " ")

// Traits implements sink.Sink.
func (s *Sink) Traits() sink.Traits { return sink.Traits{Latest: true} }

// Pace implements sink.RateLimited.
func (s *Sink) AwaitLimit(ctx context.Context) error { return s.options.Limiter.Await(ctx) }

// Thread implements sink.Sink.
func (s *Sink) Thread(f events.DeployFact) (string, bool) {
	w := f.Workload
	switch {
	case f.Rollout != nil:
		return f.Rollout.ID, true
	case f.Environment != nil:
		return strings.Join([]string{w.ClusterUID, w.Namespace, f.Environment.Group, f.Environment.Run}, "/"), true
	default:
		return fmt.Sprintf("%s/%s/%s/%s/%s/%d", w.ClusterUID, w.Namespace, w.Kind, w.Name, w.UID, f.Sequence), true
	}
}

// message is what is known of one.
type message struct {
	// Posting since then, and not known whether Slack has it; nil when it is known.
	Posting *time.Time `json:"posting,omitempty"`
	TS      string     `json:"ts,omitempty"`
	Text    string     `json:"text,omitempty"` // digest of what it says

	Head     *events.DeployFact `json:"head,omitempty"` // the fact that says how it is
	Counts   *events.Counts     `json:"counts,omitempty"`
	Drained  bool               `json:"drained,omitempty"`
	Sequence int                `json:"sequence,omitempty"` // of the last fact taken in
}

// take takes a fact in, unless it is older than what was taken in already.
func (m *message) take(f events.DeployFact) {
	if f.Sequence <= m.Sequence {
		return
	}
	m.Sequence = f.Sequence
	if f.Counts != nil {
		m.Counts = f.Counts
	}
	switch f.Fact {
	case events.FactDrained:
		m.Drained = true
		if m.Head != nil {
			return
		}
	case events.FactProgressed, events.FactRolledBack, events.FactRestarted, events.FactPartitionReached:
		if m.Head != nil {
			return
		}
	default:
	}
	m.Head = &f
}

// Deliver implements sink.Sink.
func (s *Sink) Deliver(ctx context.Context, d sink.Delivery) error {
	m, err := sink.LoadThread[message](ctx, d)
	if err != nil {
		return err
	}
	for _, f := range d.All() {
		m.take(f)
	}
	if m.Head == nil {
		return nil
	}
	text, err := s.text(m)
	if err != nil {
		return sink.Permanent(err)
	}
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	if m.TS != "" && m.Text == digest && !d.Requested {
		return sink.SaveThread(ctx, d, m)
	}
	token, err := s.cfg.TokenFile.Read()
	if err != nil {
		return fmt.Errorf("the token for Slack: %w", err)
	}
	client := slack.New(strings.TrimSpace(token), slack.OptionHTTPClient(s.options.Client), slack.OptionAPIURL(strings.TrimSuffix(s.cfg.APIURL.Reveal(), "/")+"/"))
	if m.TS == "" && m.Posting != nil {
		if m.TS, err = s.find(ctx, client, d.Thread, *m.Posting); err != nil {
			return judge("look for the message in the channel", err)
		}
	}
	if m.TS != "" {
		gone, err := s.edit(ctx, client, &m, d.Thread, text)
		if err != nil {
			return err
		}
		if gone {
			m.TS = ""
		}
	}
	if m.TS == "" {
		if err := s.post(ctx, client, d, &m, text); err != nil {
			return err
		}
	}
	m.Text, m.Posting = digest, nil
	return sink.SaveThread(ctx, d, m)
}

func (s *Sink) text(m message) (string, error) {
	f := *m.Head
	if m.Counts != nil {
		f.Counts = m.Counts
	}
	view := sink.NewView(f, sink.Source{})
	view.Drained = m.Drained
	text, err := s.template.Execute(view)
	return sink.Truncate(longestText, text), err
}

const eventType = "lockstep_rollout"

func options(thread, text string) slack.MsgOption {
	return slack.MsgOptionCompose(slack.MsgOptionText(text, false), slack.MsgOptionDisableLinkUnfurl(), slack.MsgOptionDisableMediaUnfurl(),
		slack.MsgOptionMetadata(slack.SlackMetadata{EventType: eventType, EventPayload: map[string]any{"rollout": thread}}))
}

// edit edits the message; true says that it cannot be edited any more.
func (s *Sink) edit(ctx context.Context, client *slack.Client, m *message, thread, text string) (bool, error) {
	_, _, _, err := client.UpdateMessageContext( //nolint:dogsled // as the library has it
		ctx, s.cfg.Channel, m.TS, options(thread, text))
	if refusal, ok := errors.AsType[slack.SlackErrorResponse](err); ok {
		switch refusal.Err {
		case "message_not_found", "cant_update_message", "edit_window_closed":
			return true, nil
		}
	}
	return false, judge("edit the message", err)
}

// post posts the message, and first notes that it does.
func (s *Sink) post(ctx context.Context, client *slack.Client, d sink.Delivery, m *message, text string) error {
	if err := s.options.Limiter.AwaitPause(ctx); err != nil {
		return err
	}
	now := time.Now().UTC()
	m.Posting = &now
	if err := sink.SaveThread(ctx, d, *m); err != nil {
		return err
	}
	_, ts, err := client.PostMessageContext(ctx, s.cfg.Channel, options(d.Thread, text))
	if err == nil {
		m.TS = ts
		return nil
	}
	if refused(err) {
		m.Posting = nil
		err = errors.Join(err, sink.SaveThread(ctx, d, *m))
	}
	return judge("post the message", err)
}

// refused says that Slack has answered, and has not taken it.
func refused(err error) bool {
	var refusal slack.SlackErrorResponse
	if _, ok := errors.AsType[*slack.RateLimitedError](err); ok {
		return true
	}
	if !errors.As(err, &refusal) {
		return false
	}
	switch refusal.Err {
	case "fatal_error", "internal_error", "request_timeout", "service_unavailable":
		return false // Slack says that it may have had an effect
	}
	return true
}

const (
	historyPages = 10
	historySize  = 200
	// skew is by how much clocks may differ.
	skew = time.Minute
)

// find looks for the message of the thread in the channel; "" when it is not there.
func (s *Sink) find(ctx context.Context, client *slack.Client, thread string, since time.Time) (string, error) {
	parameters := &slack.GetConversationHistoryParameters{
		ChannelID: s.cfg.Channel, Oldest: fmt.Sprintf("%d.000000", since.Add(-skew).Unix()), Limit: historySize, IncludeAllMetadata: true, Inclusive: true,
	}
	for range historyPages {
		page, err := client.GetConversationHistoryContext(ctx, parameters)
		if refusal, ok := errors.AsType[slack.SlackErrorResponse](err); ok && (refusal.Err == "missing_scope" || refusal.Err == "not_allowed_token_type") {
			return "", nil
		}
		if err != nil {
			return "", err //nolint:wrapcheck // judged by the caller
		}
		for _, m := range page.Messages {
			if m.Metadata.EventType == eventType && m.Metadata.EventPayload["rollout"] == thread {
				return m.Timestamp, nil
			}
		}
		if parameters.Cursor = page.ResponseMetaData.NextCursor; !page.HasMore || parameters.Cursor == "" {
			break
		}
	}
	return "", nil
}

// judge makes of a failure what the runner understands.
func judge(what string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("%s: %w", what, sink.WithoutURL(err))
	if limited, ok := errors.AsType[*slack.RateLimitedError](err); ok {
		return &sink.RetryAfter{Delay: max(limited.RetryAfter, time.Second), Err: wrapped}
	}
	if refusal, ok := errors.AsType[slack.SlackErrorResponse](err); ok {
		switch refusal.Err {
		case "msg_too_long", "no_text", "invalid_blocks", "invalid_blocks_format", "invalid_metadata_format", "invalid_metadata_schema", "metadata_too_large",
			"restricted_action", "too_many_attachments", "invalid_arguments", "invalid_arg_name":
			return sink.Permanent(wrapped)
		case "ratelimited", "rate_limited":
			return &sink.RetryAfter{Delay: time.Minute, Err: wrapped}
		}
	}
	return wrapped
}
