package github

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

	"github.com/google/go-github/v92/github"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/retry"
	"lockstep.internal/services/deploys/sink"
)

// Config of the sinks for GitHub.
type Config struct {
	APIURL    config.URL        `yaml:"api_url" help:"the API: https://api.github.com, or https://<host>/api/v3 of GitHub Enterprise Server"`
	TokenFile config.Secret     `yaml:"token_file" help:"file with a token that may write statuses, deployments or pull requests, as the type of sink needs"`
	Source    sink.SourceConfig `yaml:"source"`

	Context     string `yaml:"context" help:"template of the context of commit statuses, which identifies a status of a commit; default: lockstep/<namespace>/<name>"`
	TargetURL   string `yaml:"target_url" help:"template of the URL that a status or deployment links to; default: none"`
	Environment string `yaml:"environment" help:"template of the environment of deployments; default: the group, else the namespace"`
	Production  bool   `yaml:"production" help:"deployments are to an environment that users see"`
	Transient   bool   `yaml:"transient" help:"deployments are to environments that are deleted later"`

	PullRequestKeys    []string `yaml:"pull_request_keys" help:"annotations or labels that hold the number of the pull request"`
	PullRequestPattern string   `yaml:"pull_request_pattern" help:"regular expression for the name of the group, with the number of the pull request as its group; without a match the sink searches the pull request of the commit"`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config {
	return Config{
		APIURL: "https://api.github.com", Source: sink.DefaultSource(),
		Context:            "lockstep/{{if .Group}}{{.Group}}{{else}}{{.Namespace}}/{{.Name}}{{end}}",
		Environment:        "{{default .Namespace .Group}}",
		PullRequestKeys:    []string{"lockstep.dev/pull-request"},
		PullRequestPattern: `(?:^|[-/])(?:pr|pull)-?([0-9]+)$`,
	}
}

// Missing returns the required settings that are absent.
func (c Config) Missing() []string {
	var missing []string
	if !c.TokenFile.IsSet() {
		missing = append(missing, "token_file")
	}
	if len(c.Source.Repositories) == 0 && c.Source.Repository == "" {
		missing = append(missing, "source.repositories")
	}
	return missing
}

// Validate returns the errors of the settings.
func (c Config) Validate() []error {
	var faults []error
	if u, err := url.Parse(c.APIURL.Reveal()); err != nil || u.Host == "" || u.User != nil {
		faults = append(faults, config.Invalid("api_url", "not a URL such as https://api.github.com"))
	}
	for key, text := range map[string]string{
		"context":     c.Context,
		"target_url":  c.TargetURL,
		"environment": c.Environment,
	} {
		if _, err := sink.ParseTemplate(text, nil); err != nil {
			faults = append(faults, config.Invalid(key, "%v", err))
		}
	}
	if _, err := pullRequestPattern(c.PullRequestPattern); err != nil {
		faults = append(faults, config.Invalid("pull_request_pattern", "%v", err))
	}
	return faults
}

// Limits returns the limits of GitHub for write requests.
func Limits() []sink.Limit {
	return []sink.Limit{{Count: 80, Window: time.Minute, Burst: 10}, {Count: 500, Window: time.Hour, Burst: 80}}
}

// Destination identifies the token. Sinks with the same token share the limits.
func (c Config) Destination() string {
	secret, err := c.TokenFile.Read()
	if err != nil {
		secret = c.TokenFile.Path()
	}
	digest := sha256.Sum256([]byte(secret))
	return "github/" + c.APIURL.String() + "/" + hex.EncodeToString(digest[:])
}

// webHost returns the host of repository URLs.
func (c Config) webHost() string {
	u, err := url.Parse(c.APIURL.Reveal())
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Hostname(), "api.")
}

// Options of a sink in addition to its configuration.
type Options struct {
	// Name of the sink.
	Name string
	// Template of the description or of the comment; nil for the default.
	Template *sink.Template
	// Client with rate limits and address checks. Required.
	Client *http.Client
	// Limiter is the limiter of Client. The sink pauses it after a rate-limit response without Retry-After. Required.
	Limiter *sink.Limiter
}

// api is the GitHub client of one sink.
type api struct {
	cfg     Config
	finder  *sink.Finder
	client  *http.Client
	limiter *sink.Limiter
}

func newAPI(cfg Config, o Options) (*api, error) {
	finder, err := sink.NewFinder(cfg.Source, cfg.webHost())
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	client := *o.Client
	client.CheckRedirect = sameHost
	return &api{cfg: cfg, finder: finder, client: &client, limiter: o.Limiter}, nil
}

// sameHost follows redirects to the same host, such as those of renamed repositories. It does not follow a redirect to
// another host, because that host would receive the token.
func sameHost(request *http.Request, via []*http.Request) error {
	if len(via) >= 5 || request.URL.Host != via[0].URL.Host || request.URL.Scheme != via[0].URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// AwaitLimit implements sink.RateLimited for all sinks of GitHub.
func (a *api) AwaitLimit(ctx context.Context) error { return a.limiter.Await(ctx) }

// open returns a client with the current token.
func (a *api) open() (*github.Client, error) {
	token, err := a.cfg.TokenFile.Read()
	if err != nil {
		return nil, fmt.Errorf("read the token for GitHub: %w", err)
	}
	base := strings.TrimSuffix(a.cfg.APIURL.Reveal(), "/") + "/"
	client, err := github.NewClient(github.WithHTTPClient(a.client), github.WithAuthToken(strings.TrimSpace(token)),
		github.WithURLs(&base, nil),
		github.WithUserAgent("lockstep-deploys"), github.WithDisableRateLimitCheck())
	if err != nil {
		return nil, fmt.Errorf("create the client for GitHub: %w", err)
	}
	return client, nil
}

// secondaryPause is the pause after a secondary rate limit without a delay, as GitHub asks.
const secondaryPause = time.Minute

// newError classifies an error for the sink worker.
func (a *api) newError(action string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("%s: %w", action, egress.WithoutURL(err))
	var primary *github.RateLimitError
	var secondary *github.AbuseRateLimitError
	var errResponse *github.ErrorResponse
	switch {
	case errors.As(err, &primary):
		return a.pause(wrapped, max(time.Until(primary.Rate.Reset.Time), time.Second))
	case errors.As(err, &secondary):
		delay := secondaryPause
		if secondary.RetryAfter != nil && *secondary.RetryAfter > 0 {
			delay = *secondary.RetryAfter
		}
		return a.pause(wrapped, delay)
	case errors.As(err, &errResponse) && errResponse.Response != nil:
		switch errResponse.Response.StatusCode {
		case http.StatusNotFound, http.StatusGone, http.StatusUnprocessableEntity, http.StatusUnavailableForLegalReasons,
			http.StatusBadRequest:
			return retry.Permanent(wrapped)
		case http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable:
			if delay, ok := egress.ParseRetryAfter(errResponse.Response.Header, time.Now()); ok {
				return a.pause(wrapped, delay)
			}
		}
	}
	return wrapped
}

const maxPause = time.Hour

func (a *api) pause(err error, delay time.Duration) error {
	delay = min(delay, maxPause)
	a.limiter.Pause(delay)
	return &sink.RetryAfter{Delay: delay, Err: err}
}

// fullCommit returns the full commit id. Image tags often contain an abbreviated one.
func (a *api) fullCommit(ctx context.Context, client *github.Client, s sink.Source) (string, error) {
	if len(s.Commit) == 40 || len(s.Commit) == 64 {
		return s.Commit, nil
	}
	sha, _, err := client.Repositories.GetCommitSHA1(ctx, s.Owner, s.Name, s.Commit, "")
	if err != nil {
		return "", a.newError("find commit "+s.Commit+" of "+s.Repository(), err)
	}
	return sha, nil
}
