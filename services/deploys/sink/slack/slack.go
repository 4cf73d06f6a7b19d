// Package slack contains the sink that writes one message per rollout in a channel. It posts the message when the
// rollout starts and edits it afterwards.
//
// The message shows the last fact that changed the state, the current pod counts, and whether the old pods have
// terminated. A fact without a rollout or an environment gets its own message. Slack accepts about one message per
// second and channel, so waiting facts become one edit, and an edit without a change is skipped. After a status 429,
// the sink pauses.
//
// Slack has no idempotency keys. So each message contains its rollout as metadata, and the sink stores the start of
// each post. After a crash or a lost response, it first searches the history of the channel (scope channels:history or
// groups:history, in addition to chat:write). Without that scope it posts again: a duplicate is better than no message.
//
// If Slack rejects the content of a message, the fact is dead-lettered. If Slack does not know the channel or the
// token, the delivery is retried, because an operator can fix it.
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
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

// Config of a channel.
type Config struct {
	Channel   string        `yaml:"channel" help:"id of the channel, such as C0123456789; the app must be a member"`
	TokenFile config.Secret `yaml:"token_file" help:"file with the app's bot token, with the scopes chat:write and channels:history (groups:history for a private channel)"`
	APIURL    config.URL    `yaml:"api_url" help:"Slack's API"`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config { return Config{APIURL: "https://slack.com/api"} }

// Missing returns the required settings that are absent.
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

// Validate returns the errors of the settings.
func (c Config) Validate() []error {
	if u, err := url.Parse(c.APIURL.Reveal()); err != nil || u.Host == "" || u.User != nil {
		return []error{config.Invalid("api_url", "not a URL such as https://slack.com/api")}
	}
	return nil
}

// Limits returns the limits of Slack for one channel.
func Limits() []sink.Limit { return []sink.Limit{{Count: 1, Window: 1100 * time.Millisecond}} }

// Destination identifies the channel. Sinks with the same channel share the limits.
func (c Config) Destination() string { return "slack/" + c.APIURL.String() + "/" + c.Channel }

// Facts returns the default filter.
func Facts() []string {
	return []string{
		"started", "progressed", "completed", "drained", "stalled", "recovered", "blocked", "unblocked",
		"paused", "resumed", "superseded", "cancelled", "unknown", "partition_reached", "environment_started",
		"environment_ready", "environment_failed", "environment_removed",
	}
}

const defaultText = `{{$f := .Fact}}{{if or (eq $f "completed") (eq $f "environment_ready")}}:white_check_mark:` +
	`{{else if or (eq $f "stalled") (eq $f "blocked") (eq $f "environment_failed")}}:warning:` +
	`{{else if or (eq $f "cancelled") (eq $f "unknown") (eq $f "superseded")}}:heavy_minus_sign:` +
	`{{else}}:arrows_counterclockwise:{{end}}` +
	` *{{if .Group}}{{.Group}}{{else}}{{.Namespace}}/{{.Name}}{{end}}* {{title $f}}` +
	`{{if .Revision}} (revision {{.Revision}}{{if ne .Change "updated"}}, {{title .Change}}{{end}}){{end}}` +
	`{{if .Duration}} after {{duration .Duration}}{{end}}{{if .Drained}}, old pods gone{{end}}` +
	`{{if and .Desired (ne $f "completed")}} · {{.Updated}}/{{.Desired}} new, {{.Available}} available{{end}}` +
	`{{if .URL}}
<{{.URL}}>{{end}}{{if .Message}}{{if or (eq $f "stalled") (eq $f "blocked") (eq $f "environment_failed")}}
>{{.Message}}{{end}}{{end}}{{range .Images}}
{{code .}}{{end}}`

// maxText is the maximum length of a text that Slack does not collapse, in characters.
const maxText = 3900

// Options in addition to the configuration.
type Options struct {
	// Template of the message; nil for the default.
	Template *sink.Template
	// Client with rate limits and address checks. Required.
	Client *http.Client
	// Limiter of the client. Required.
	Limiter *sink.Limiter
}

// Sink posts and edits messages in one channel.
type Sink struct {
	cfg      Config
	options  Options
	template *sink.Template
}

// New returns the sink.
func New(cfg Config, o Options) (*Sink, error) {
	s := &Sink{cfg: cfg, options: o, template: o.Template}
	if s.template == nil {
		var err error
		if s.template, err = sink.ParseTemplate(defaultText, Markup()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Traits implements sink.Sink.
func (s *Sink) Traits() sink.Traits { return sink.Traits{Latest: true} }

// AwaitLimit implements sink.RateLimited.
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

// message is the stored state of a message.
type message struct {
	// Posting is the start of a post whose result is unknown, or nil.
	Posting *time.Time `json:"posting,omitempty"`
	TS      string     `json:"ts,omitempty"`
	Text    string     `json:"text,omitempty"` // digest of the text

	Head     *events.DeployFact `json:"head,omitempty"` // the fact that determines the state
	Counts   *events.Counts     `json:"counts,omitempty"`
	Drained  bool               `json:"drained,omitempty"`
	Sequence int                `json:"sequence,omitempty"` // of the last applied fact
}

// apply applies a fact, unless it is older than the last applied one.
func (m *message) apply(f events.DeployFact) {
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
		m.apply(f)
	}
	if m.Head == nil {
		return nil
	}
	text, err := s.text(m)
	if err != nil {
		return retry.Permanent(err)
	}
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	if m.TS != "" && m.Text == digest && !d.Requested {
		return sink.SaveThread(ctx, d, m)
	}
	token, err := s.cfg.TokenFile.Read()
	if err != nil {
		return fmt.Errorf("read the token for Slack: %w", err)
	}
	api := strings.TrimSuffix(s.cfg.APIURL.Reveal(), "/") + "/"
	client := slack.New(strings.TrimSpace(token), slack.OptionHTTPClient(s.options.Client), slack.OptionAPIURL(api))
	if m.TS == "" && m.Posting != nil {
		if m.TS, err = s.find(ctx, client, d.Thread, *m.Posting); err != nil {
			return newError("search the channel for the message", err)
		}
	}
	if m.TS != "" {
		missing, err := s.edit(ctx, client, &m, d.Thread, text)
		if err != nil {
			return err
		}
		if missing {
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
	return sink.Truncate(maxText, text), err
}

const eventType = "lockstep_rollout"

func options(thread, text string) slack.MsgOption {
	return slack.MsgOptionCompose(
		slack.MsgOptionText(text, false), slack.MsgOptionDisableLinkUnfurl(), slack.MsgOptionDisableMediaUnfurl(),
		slack.MsgOptionMetadata(slack.SlackMetadata{EventType: eventType, EventPayload: map[string]any{"rollout": thread}}))
}

// edit edits the message. It returns true if the message cannot be edited any more.
func (s *Sink) edit(ctx context.Context, client *slack.Client, m *message, thread, text string) (bool, error) {
	_, _, _, err := client.UpdateMessageContext( //nolint:dogsled // The library returns four values.
		ctx, s.cfg.Channel, m.TS, options(thread, text))
	if slackErr, ok := errors.AsType[slack.SlackErrorResponse](err); ok {
		switch slackErr.Err {
		case "message_not_found", "cant_update_message", "edit_window_closed":
			return true, nil
		}
	}
	return false, newError("edit the message", err)
}

// post posts the message. It saves the start of the post first.
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
	if isRejected(err) {
		m.Posting = nil
		err = errors.Join(err, sink.SaveThread(ctx, d, *m))
	}
	return newError("post the message", err)
}

// isRejected reports whether Slack responded and did not accept the message.
func isRejected(err error) bool {
	var slackErr slack.SlackErrorResponse
	if _, ok := errors.AsType[*slack.RateLimitedError](err); ok {
		return true
	}
	if !errors.As(err, &slackErr) {
		return false
	}
	switch slackErr.Err {
	case "fatal_error", "internal_error", "request_timeout", "service_unavailable":
		return false // The request may have had an effect.
	}
	return true
}

const (
	historyPages = 10
	historySize  = 200
	// skew is the maximum difference of the clocks.
	skew = time.Minute
)

// find returns the message of the thread in the channel, or "".
func (s *Sink) find(ctx context.Context, client *slack.Client, thread string, since time.Time) (string, error) {
	parameters := &slack.GetConversationHistoryParameters{
		ChannelID: s.cfg.Channel, Oldest: fmt.Sprintf("%d.000000", since.Add(-skew).Unix()),
		Limit: historySize, IncludeAllMetadata: true, Inclusive: true,
	}
	for range historyPages {
		page, err := client.GetConversationHistoryContext(ctx, parameters)
		slackErr, ok := errors.AsType[slack.SlackErrorResponse](err)
		if ok && (slackErr.Err == "missing_scope" || slackErr.Err == "not_allowed_token_type") {
			return "", nil
		}
		if err != nil {
			return "", err //nolint:wrapcheck // Wrapped by the caller.
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

// newError classifies an error for the sink worker.
func newError(action string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("%s: %w", action, egress.WithoutURL(err))
	if limited, ok := errors.AsType[*slack.RateLimitedError](err); ok {
		return &sink.RetryAfter{Delay: max(limited.RetryAfter, time.Second), Err: wrapped}
	}
	if slackErr, ok := errors.AsType[slack.SlackErrorResponse](err); ok {
		switch slackErr.Err {
		case "msg_too_long", "no_text", "invalid_blocks", "invalid_blocks_format", "invalid_metadata_format",
			"invalid_metadata_schema", "metadata_too_large", "restricted_action", "too_many_attachments", "invalid_arguments",
			"invalid_arg_name":
			return retry.Permanent(wrapped)
		case "ratelimited", "rate_limited":
			return &sink.RetryAfter{Delay: time.Minute, Err: wrapped}
		}
	}
	return wrapped
}
