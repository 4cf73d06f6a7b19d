// Package webhook contains the sink that posts each fact to a URL, signed as Standard Webhooks define.
//
// The body is the CloudEvent in structured JSON, or the output of a template. With the headers webhook-id,
// webhook-timestamp and webhook-signature, the receiver verifies a request and detects duplicates. webhook-id is the id
// of the event, the same in every attempt and resend. Facts of one workload are posted in order.
//
// A status 2xx means success. After status 400, 410, 413, 415 or 422, the fact is dead-lettered. After any other
// status, including redirects, the delivery is retried with back-off; 429 and 503 may set the delay with Retry-After.
// The URL may contain a secret and is never logged.
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
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

// Config of a webhook.
type Config struct {
	URL         config.URL        `yaml:"url" help:"URL to post to"`
	URLFile     config.Secret     `yaml:"url_file" help:"file with the URL, if the URL is a secret"`
	SecretFile  config.Secret     `yaml:"secret_file" help:"file with the signing secret, whsec_ and base64; with several lines each secret signs, to rotate secrets without a gap"`
	Headers     map[string]string `yaml:"headers" help:"further headers"`
	ContentType string            `yaml:"content_type" help:"content type of the output of the template"`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config { return Config{ContentType: "application/json"} }

// Missing returns the required settings that are absent.
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

// Validate returns the errors of the settings.
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
		return "", fmt.Errorf("not a URL that starts with https:// or http://")
	}
	return u.String(), nil
}

// signers returns one signer for each secret in the file.
func signers(secret config.Secret) ([]*standardwebhooks.Webhook, error) {
	text, err := secret.Read()
	if err != nil {
		return nil, fmt.Errorf("read the signing secret: %w", err)
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
		return nil, fmt.Errorf("the file has no signing secret")
	}
	return list, nil
}

// Options in addition to the configuration.
type Options struct {
	// Template of the body; nil posts the event.
	Template *sink.Template
	// Client with rate limits and address checks. It must not follow redirects. Required.
	Client *http.Client
	// Parallel is the number of workloads with concurrent deliveries. Defaults to 4.
	Parallel int
}

// Sink posts facts.
type Sink struct {
	cfg     Config
	options Options
}

// New returns the sink.
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
		return retry.Permanent(err)
	}
	request, err := s.request(ctx, d.Key, body, time.Now())
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", contentType)
	response, err := s.options.Client.Do(request)
	if err != nil {
		return fmt.Errorf("post to the webhook: %w", egress.WithoutURL(err))
	}
	defer response.Body.Close() //nolint:errcheck // Opened for reading.
	// Read the rest of the response, so the connection can be reused.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	return newError(response)
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
			return nil, fmt.Errorf("read the URL of the webhook: %w", err)
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
			return nil, fmt.Errorf("sign the request to the webhook: %w", err)
		}
		signatures = append(signatures, signature)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("post to the webhook: %w", egress.WithoutURL(err))
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

func newError(response *http.Response) error {
	if response.StatusCode/100 == 2 {
		return nil
	}
	err := fmt.Errorf("the webhook returned status %d", response.StatusCode)
	switch response.StatusCode {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return retry.Permanent(err)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if delay, ok := egress.ParseRetryAfter(response.Header, time.Now()); ok {
			return &sink.RetryAfter{Delay: delay, Err: err}
		}
	}
	return err
}
