package runnerclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Version of the runner whose headers are used.
type Version int

// The versions.
const (
	// Since1711 sends tokens as RUNNER-TOKEN and JOB-TOKEN and reports a job as running at once.
	Since1711 Version = iota
	// Before1711 sends them as PRIVATE-TOKEN, except those of traces and artifacts.
	Before1711
)

const (
	defaultInterval = 3 * time.Second
	// maxClientErrors is how many refused requests in a row disable a runner for an hour.
	maxClientErrors = 3
	// maxAnswer bounds an answer with JSON in bytes.
	maxAnswer = 16 << 20
)

// ErrDisabled means that the server refused three requests for jobs in a row. A runner then sends none for an hour.
var ErrDisabled = errors.New("the server refused three requests for jobs in a row; a runner pauses for an hour")

// ErrTryAgain is the status 409 of a request for a job: another runner was faster.
var ErrTryAgain = errors.New("the server asks to try again soon")

// Config of a [Client].
type Config struct {
	// URL of the server, without /api/v4.
	URL string
	// Token of the runner.
	Token string
	// SystemID of the runner manager.
	SystemID string
	Version  Version
	// HTTP defaults to a client with its own connections.
	HTTP *http.Client
	// MaxWait bounds every pause, also one that the server asks for. Defaults to none.
	MaxWait time.Duration
	// Unmasked sends masked values in the trace, as no correct runner does.
	Unmasked bool
	// Info that is sent. Defaults to that of a runner with a shell.
	Info map[string]any
}

// Client is one runner manager. It may be used by many goroutines.
type Client struct {
	cfg  Config
	base string

	mu           sync.Mutex
	token        string
	lastUpdate   string
	clientErrors int
}

// New makes a client.
func New(cfg Config) *Client {
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	}
	if cfg.Info == nil {
		cfg.Info = defaultInfo(cfg.Version)
	}
	return &Client{cfg: cfg, base: strings.TrimSuffix(cfg.URL, "/") + "/api/v4", token: cfg.Token}
}

// Close closes idle connections.
func (c *Client) Close() { c.cfg.HTTP.CloseIdleConnections() }

// Token returns the token of the runner. It changes with [Client.ResetToken].
func (c *Client) Token() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}

// LastUpdate returns the position that the next request for a job repeats.
func (c *Client) LastUpdate() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastUpdate
}

// StatusError is an answer that the contract does not call a success.
type StatusError struct {
	Request string
	Status  int
	// Code and Message of the body, if it has them.
	Code, Message string
	Header        http.Header
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.Request, e.Status, e.Code, e.Message)
}

// StatusOf returns the status of a [StatusError], and 0 for other errors.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.Status
	}
	return 0
}

// answer is a whole answer.
type answer struct {
	request string
	status  int
	header  http.Header
	body    []byte
}

// send sends JSON, or no body if it is nil, and reads the whole answer.
func (c *Client) send(
	ctx context.Context, method, path string, header http.Header, body any,
) (answer, error) {
	raw := []byte(nil)
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return answer{}, fmt.Errorf("encode %s: %w", path, err)
		}
		header = header.Clone()
		header.Set("Content-Type", "application/json")
		header.Set("Accept", "application/json")
	}
	return c.sendRaw(ctx, method, path, header, raw)
}

func (c *Client) sendRaw(
	ctx context.Context, method, path string, header http.Header, body []byte,
) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, path, err)
	}
	maps.Copy(request.Header, header)
	response, err := c.cfg.HTTP.Do(request)
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return read(method+" "+path, response)
}

// read reads and closes the body.
func read(request string, response *http.Response) (answer, error) {
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return answer{}, fmt.Errorf("%s: read the answer: %w", request, err)
	}
	return answer{request: request, status: response.StatusCode, header: response.Header, body: raw}, nil
}

// into decodes the body of an answer with one of the statuses. Any other status is a [StatusError].
func (a answer) into(target any, statuses ...int) error {
	for _, status := range statuses {
		if a.status != status {
			continue
		}
		if target == nil {
			return nil
		}
		media, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
		if err != nil || media != "application/json" {
			return fmt.Errorf("%s: the answer is %q, not application/json", a.request, a.header.Get("Content-Type"))
		}
		if err := json.Unmarshal(a.body, target); err != nil {
			return fmt.Errorf("%s: decode the answer: %w", a.request, err)
		}
		return nil
	}
	return a.failure()
}

func (a answer) failure() *StatusError {
	e := &StatusError{Request: a.request, Status: a.status, Header: a.header}
	var body struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	if json.Unmarshal(a.body, &body) == nil {
		e.Code, e.Message = body.Code, body.Message
	}
	return e
}

// runnerHeader returns the header with the token of the runner.
func (c *Client) runnerHeader(token string) http.Header {
	return c.tokenHeader("Runner-Token", token)
}

// tokenHeader returns a header with a token. Old versions have one name for all.
func (c *Client) tokenHeader(name, token string) http.Header {
	if c.cfg.Version == Before1711 {
		name = "Private-Token"
	}
	return http.Header{name: {token}}
}

// pause waits, at most for MaxWait. It returns early with the error of the context.
func (c *Client) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(c.limited(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // the caller's own
	}
}

func (c *Client) limited(d time.Duration) time.Duration {
	if c.cfg.MaxWait > 0 {
		return min(d, c.cfg.MaxWait)
	}
	return d
}
