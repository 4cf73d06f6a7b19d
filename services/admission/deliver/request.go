package deliver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/seal"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/payload"
)

// Headers of a request beside those of Standard Webhooks.
const (
	// HeaderAPIURL is the address of the endpoints for controllers. HeaderJobToken has the token for them.
	HeaderAPIURL   = "Lockstep-Api-Url"
	HeaderJobToken = "Lockstep-Job-Token"
	// HeaderCallbackURL is the address for a later answer. HeaderCallbackToken has the token for it.
	HeaderCallbackURL   = "Lockstep-Callback-Url"
	HeaderCallbackToken = "Lockstep-Callback-Token"
)

const (
	tlsTimeout = 10 * time.Second
	maxHeader  = 64 << 10
)

// request is a question to a web server.
type request struct {
	chain.Question

	jobID   int64
	webhook controller.Webhook
	// secrets sign the request: each has a signature.
	secrets []seal.Value
	body    []byte
	// header has the tokens.
	header http.Header
	// canAnswerLater: the controller has an address for callbacks.
	canAnswerLater bool
}

// response is what became of a request.
type response struct {
	// input of the chain; nil if the controller answers later.
	input chain.Input
	// status is the HTTP status; 0 without a response.
	status int
	// result for people.
	result string
	// responded: the controller works.
	responded bool
	// retryAfter is the earliest time for the next attempt; zero for any.
	retryAfter time.Time
}

// newClient returns the client for the webhook of a controller. It follows no redirects and uses no proxy.
func newClient(webhook controller.Webhook, network egress.Config) *http.Client {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if webhook.CA != "" {
		secure.RootCAs = x509.NewCertPool()
		secure.RootCAs.AppendCertsFromPEM([]byte(webhook.CA))
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: network.Dialer().DialContext, TLSClientConfig: secure, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: tlsTimeout, MaxResponseHeaderBytes: maxHeader, MaxIdleConnsPerHost: webhook.Concurrency,
			IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send sends a request and reads the answer.
func send(ctx context.Context, client *http.Client, r request, now func() time.Time) response {
	ctx, cancel := context.WithTimeout(ctx, r.webhook.RequestTimeout)
	defer cancel()
	sent, err := r.build(ctx, now())
	if err != nil {
		return r.failed(err, true, false)
	}
	got, err := client.Do(sent)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the controller did not respond within %s", r.webhook.RequestTimeout)
		}
		return r.failed(egress.WithoutURL(err), false, false)
	}
	defer got.Body.Close() //nolint:errcheck // opened for reading
	out := r.read(got, now())
	out.status = got.StatusCode
	return out
}

func (r request) build(ctx context.Context, now time.Time) (*http.Request, error) {
	id := fmt.Sprintf("admission-%d-%d-%d", r.jobID, r.ControllerID, r.Attempt)
	signature, err := r.sign(id, now)
	if err != nil {
		return nil, fmt.Errorf("sign the request: %w", err)
	}
	sent, err := http.NewRequestWithContext(ctx, http.MethodPost, r.webhook.URL, bytes.NewReader(r.body))
	if err != nil {
		return nil, egress.WithoutURL(err)
	}
	maps.Copy(sent.Header, r.header)
	sent.Header.Set("Content-Type", "application/json")
	sent.Header.Set("User-Agent", "lockstep-admission")
	sent.Header.Set(standardwebhooks.HeaderWebhookID, id)
	sent.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	sent.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	return sent, nil
}

// sign returns the signatures of all secrets, separated by spaces as Standard Webhooks defines it.
func (r request) sign(id string, now time.Time) (string, error) {
	signatures := make([]string, len(r.secrets))
	for i, secret := range r.secrets {
		signer, err := standardwebhooks.NewWebhook(secret.Reveal())
		if err != nil {
			return "", fmt.Errorf("read a signing secret: %w", err)
		}
		if signatures[i], err = signer.Sign(id, now, r.body); err != nil {
			return "", fmt.Errorf("sign with a secret: %w", err)
		}
	}
	return strings.Join(signatures, " "), nil
}

func (r request) read(got *http.Response, now time.Time) response {
	switch code := got.StatusCode; {
	case code == http.StatusOK:
		answer, err := payload.ReadAnswer(got.Header.Get("Content-Type"), got.Body, r.jobID)
		if err != nil {
			var wrong *payload.AnswerError
			readable := !errors.As(err, &wrong) || wrong.Code != payload.CodeUnreadable
			return r.failed(fmt.Errorf("the answer is not valid: %w", err), false, readable)
		}
		result := "rejected"
		if answer.Accepted {
			result = "accepted"
		}
		return response{input: chain.Answered{Question: r.Question, Answer: answer}, result: result, responded: true}
	case code == http.StatusAccepted && r.canAnswerLater:
		return response{responded: true}
	case code == http.StatusAccepted:
		return r.failed(errors.New("the controller wants to answer later: cell.public_url of the service must be set"), true,
			true)
	case code >= 300 && code < 400:
		return r.failed(fmt.Errorf("the controller returned status %d: redirects are not followed, set its final address",
			code), false, true)
	default:
		_, _ = io.CopyN(io.Discard, got.Body, maxHeader) // so that the connection can be used again
		return r.status(got, now)
	}
}

// status is the response to a request that was answered with an error.
func (r request) status(got *http.Response, now time.Time) response {
	err := fmt.Errorf("the controller returned status %d", got.StatusCode)
	switch got.StatusCode {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity:
		return r.failed(err, true, true)
	}
	out := r.failed(err, false, got.StatusCode < http.StatusInternalServerError)
	if got.StatusCode == http.StatusTooManyRequests || got.StatusCode == http.StatusServiceUnavailable {
		if delay, ok := egress.ParseRetryAfter(got.Header, now); ok {
			out.retryAfter = now.Add(delay)
		}
	}
	return out
}

// failed is the response to a request without a valid answer.
func (r request) failed(err error, permanent, responded bool) response {
	message := payload.Reason(err.Error())
	return response{
		input:  chain.Failed{Question: r.Question, Message: message, Permanent: permanent},
		result: message, responded: responded,
	}
}
