// Package webhook is the sink that posts each fact to an address, signed as Standard Webhooks says.
//
// The body is the CloudEvent in structured JSON, or what a template makes; headers webhook-id,
// webhook-timestamp and webhook-signature let the receiver verify and deduplicate: the id is the
// event's, the same however often it is posted, by hand as well. Facts of one workload come in
// order.
//
// 2xx is taken for received. 400, 410, 413, 415 and 422 put the fact on DEAD; everything else,
// redirects included, is tried again with back-off, and 429 and 503 are obeyed when they say when.
// The address may hold a secret: it is in no log and no error.
package webhook

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

// Config of a webhook.
type Config struct {
	URL         config.URL        `yaml:"url" help:"where to post"`
	URLFile     config.Secret     `yaml:"url_file" help:"file that holds where to post, when the address is a secret"`
	SecretFile  config.Secret     `yaml:"secret_file" help:"file with the signing secret, whsec_ and base64; several lines sign several times, to change secrets without a gap"`
	Headers     map[string]string `yaml:"headers" help:"further headers"`
	ContentType string            `yaml:"content_type" help:"content type of what the template makes"`
}

// DefaultConfig is what Config is unless told.
func DefaultConfig() Config { return Config{ContentType: "application/json"} }

// Missing says which required settings are not given.
func (c Config) Missing() []string {
	var missing []string
	if c.URL == "" && !c.URLFile.IsSet() {
		missing = append(missing, "url")
	}
	if !c.SecretFile.IsSet() {
		missing = append(missing, "secret_file")
	}
	return missing
}

// Validate says what is wrong with what is given.
func (c Config) Validate() []error {
	var faults []error
	if c.URL != "" {
		if _, err := parseURL(c.URL.Reveal()); err != nil {
			faults = append(faults, config.Invalid("url", "%v", err))
		}
	}
	if c.SecretFile.IsSet() {
		if _, err := signers(c.SecretFile); err != nil {
			faults = append(faults, config.Invalid("secret_file", "%v", err))
		}
	}
	return faults
}

func parseURL(text string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", fmt.Errorf("the address is no https:// or http:// URL")
	}
	return u.String(), nil
}

// signers are the secrets, the newest first.
func signers(secret config.Secret) ([]*standardwebhooks.Webhook, error) {
	text, err := secret.Read()
	if err != nil {
		return nil, fmt.Errorf("the signing secret: %w", err)
	}
	var list []*standardwebhooks.Webhook
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		s, err := standardwebhooks.NewWebhook(line)
		if err != nil {
			return nil, fmt.Errorf("line %d of the signing secret is not whsec_ and base64", len(list)+1)
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("there is no signing secret")
	}
	return list, nil
}

// Options beside the configuration.
type Options struct {
	// Template of the body; nil posts the event.
	Template *sink.Template
	// Client to send with, which limits and guards. It must not follow redirects. Required.
	Client *http.Client
	// Parallel is how many workloads are told of at once. Defaults to 4.
	Parallel int
}

// Sink posts facts.
type Sink struct {
	cfg     Config
	options Options
}

// New makes the sink.
func New(cfg Config, options Options) *Sink {
	if options.Parallel == 0 {
		options.Parallel = 4
	}
	return &Sink{cfg: cfg, options: options}
}

// Traits implements sink.Sink.
func (s *Sink) Traits() sink.Traits { return sink.Traits{Parallel: s.options.Parallel} }

// Thread implements sink.Sink.
func (s *Sink) Thread(f events.DeployFact) (string, bool) {
	w := f.Workload
	return strings.Join([]string{w.ClusterUID, w.Namespace, w.Kind, w.Name}, "/"), true
}

// Deliver implements sink.Sink.
func (s *Sink) Deliver(ctx context.Context, d sink.Delivery) error {
	body, contentType, err := s.body(d)
	if err != nil {
		return sink.Permanent(err)
	}
	request, err := s.request(ctx, d.Key, body, time.Now())
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", contentType)
	response, err := s.options.Client.Do(request)
	if err != nil {
		return fmt.Errorf("post to the webhook: %w", sink.WithoutURL(err))
	}
	defer response.Body.Close() //nolint:errcheck // only read
	// What is left of the answer is read so that the connection can be used again.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	return judge(response)
}

func (s *Sink) body(d sink.Delivery) ([]byte, string, error) {
	if s.options.Template == nil {
		body, err := event.MarshalStructured(d.Event)
		return body, "application/cloudevents+json; charset=utf-8", err
	}
	text, err := s.options.Template.Execute(sink.NewView(d.Fact, sink.Source{}))
	return []byte(text), s.cfg.ContentType, err
}

func (s *Sink) request(ctx context.Context, key string, body []byte, now time.Time) (*http.Request, error) {
	address := s.cfg.URL.Reveal()
	if s.cfg.URLFile.IsSet() {
		var err error
		if address, err = s.cfg.URLFile.Read(); err != nil {
			return nil, fmt.Errorf("the address of the webhook: %w", err)
		}
	}
	address, err := parseURL(address)
	if err != nil {
		return nil, err
	}
	keys, err := signers(s.cfg.SecretFile)
	if err != nil {
		return nil, err
	}
	signatures := make([]string, 0, len(keys))
	for _, k := range keys {
		signature, err := k.Sign(key, now, body)
		if err != nil {
			return nil, fmt.Errorf("sign for the webhook: %w", err)
		}
		signatures = append(signatures, signature)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("post to the webhook: %w", sink.WithoutURL(err))
	}
	for name, value := range s.cfg.Headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("User-Agent", "lockstep-deploys")
	request.Header.Set(standardwebhooks.HeaderWebhookID, key)
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return request, nil
}

func judge(response *http.Response) error {
	if response.StatusCode/100 == 2 {
		return nil
	}
	err := fmt.Errorf("the webhook answered %d", response.StatusCode)
	switch response.StatusCode {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return sink.Permanent(err)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if delay, ok := sink.ParseRetryAfter(response.Header, time.Now()); ok {
			return &sink.RetryAfter{Delay: delay, Err: err}
		}
	}
	return err
}
