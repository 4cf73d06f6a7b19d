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
	"lockstep.internal/services/deploys/sink"
)

// Config of all sinks of GitHub, and of each.
type Config struct {
	APIURL    config.URL        `yaml:"api_url" help:"the API: https://api.github.com, or https://<host>/api/v3 of GitHub Enterprise Server"`
	TokenFile config.Secret     `yaml:"token_file" help:"file with a token that may write statuses, deployments or pull requests, as the type of sink needs"`
	Source    sink.SourceConfig `yaml:"source"`

	Context     string `yaml:"context" help:"template of the context of commit statuses: what tells one status of a commit from another; default: lockstep/<namespace>/<name>"`
	TargetURL   string `yaml:"target_url" help:"template of the address that a status or deployment links to; default: none"`
	Environment string `yaml:"environment" help:"template of the environment of deployments; default: the group, else the namespace"`
	Production  bool   `yaml:"production" help:"deployments are to an environment that users see"`
	Transient   bool   `yaml:"transient" help:"deployments are to environments that will go away"`

	PullRequestKeys    []string `yaml:"pull_request_keys" help:"annotations or labels that hold the number of the pull request"`
	PullRequestPattern string   `yaml:"pull_request_pattern" help:"regular expression over the name of the group, whose first group is the number of the pull request; where neither tells it, GitHub is asked for that of the commit"`
}

// DefaultConfig is what Config is unless told.
func DefaultConfig() Config {
	return Config{
		APIURL: "https://api.github.com", Source: sink.DefaultSource(),
		Context:            "lockstep/{{if .Group}}{{.Group}}{{else}}{{.Namespace}}/{{.Name}}{{end}}",
		Environment:        "{{default .Namespace .Group}}",
		PullRequestKeys:    []string{"lockstep.dev/pull-request"},
		PullRequestPattern: `(?:^|[-/])(?:pr|pull)-?([0-9]+)$`,
	}
}

// Missing says which required settings are not given.
func (c Config) Missing() []string {
	if !c.TokenFile.IsSet() {
		return []string{"token_file"}
	}
	return nil
}

// Validate says what is wrong with what is given.
func (c Config) Validate() []error {
	var faults []error
	if u, err := url.Parse(c.APIURL.Reveal()); err != nil || u.Host == "" || u.User != nil {
		faults = append(faults, config.Invalid("api_url", "is no URL such as https://api.github.com"))
	}
	for key, text := range map[string]string{"context": c.Context, "target_url": c.TargetURL, "environment": c.Environment} {
		if _, err := sink.ParseTemplate(text, nil); err != nil {
			faults = append(faults, config.Invalid(key, "%v", err))
		}
	}
	if _, err := pullRequestPattern(c.PullRequestPattern); err != nil {
		faults = append(faults, config.Invalid("pull_request_pattern", "%v", err))
	}
	return faults
}

// Limits of GitHub for requests that write.
func Limits() []sink.Limit {
	return []sink.Limit{{Count: 80, Window: time.Minute, Burst: 10}, {Count: 500, Window: time.Hour, Burst: 80}}
}

// Destination names what the limits are shared by: the token.
func (c Config) Destination() string {
	secret, err := c.TokenFile.Read()
	if err != nil {
		secret = c.TokenFile.Path()
	}
	digest := sha256.Sum256([]byte(secret))
	return "github/" + c.APIURL.String() + "/" + hex.EncodeToString(digest[:])
}

// webHost is the host of repositories' addresses.
func (c Config) webHost() string {
	u, err := url.Parse(c.APIURL.Reveal())
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Hostname(), "api.")
}

// Options of a sink beside its configuration.
type Options struct {
	// Name of the sink.
	Name string
	// Template of the description or of the comment; nil for the default.
	Template *sink.Template
	// Client to send with, which limits and guards. Required.
	Client *http.Client
	// Limiter of the client, to be paused by limits that come without Retry-After. Required.
	Limiter *sink.Limiter
}

// api speaks to GitHub for one sink.
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

// sameHost follows the redirects of repositories that were renamed, and takes the token nowhere
// else.
func sameHost(request *http.Request, via []*http.Request) error {
	if len(via) >= 5 || request.URL.Host != via[0].URL.Host || request.URL.Scheme != via[0].URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// Pace implements sink.RateLimited for all sinks of GitHub.
func (a *api) AwaitLimit(ctx context.Context) error { return a.limiter.Await(ctx) }

// open makes a client with the token as it is now.
func (a *api) open() (*github.Client, error) {
	token, err := a.cfg.TokenFile.Read()
	if err != nil {
		return nil, fmt.Errorf("the token for GitHub: %w", err)
	}
	base := strings.TrimSuffix(a.cfg.APIURL.Reveal(), "/") + "/"
	client, err := github.NewClient(github.WithHTTPClient(a.client), github.WithAuthToken(strings.TrimSpace(token)), github.WithURLs(&base, nil),
		github.WithUserAgent("lockstep-deploys"), github.WithDisableRateLimitCheck())
	if err != nil {
		return nil, fmt.Errorf("set up the client for GitHub: %w", err)
	}
	return client, nil
}

// secondaryPause is how long nothing is sent after a secondary limit that does not say how long:
// what GitHub asks for.
const secondaryPause = time.Minute

// judge makes of a failure what the runner understands. what says what was done.
func (a *api) judge(what string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("%s: %w", what, sink.WithoutURL(err))
	var primary *github.RateLimitError
	var secondary *github.AbuseRateLimitError
	var refused *github.ErrorResponse
	switch {
	case errors.As(err, &primary):
		return a.pause(wrapped, max(time.Until(primary.Rate.Reset.Time), time.Second))
	case errors.As(err, &secondary):
		delay := secondaryPause
		if secondary.RetryAfter != nil && *secondary.RetryAfter > 0 {
			delay = *secondary.RetryAfter
		}
		return a.pause(wrapped, delay)
	case errors.As(err, &refused) && refused.Response != nil:
		switch refused.Response.StatusCode {
		case http.StatusNotFound, http.StatusGone, http.StatusUnprocessableEntity, http.StatusUnavailableForLegalReasons, http.StatusBadRequest:
			return sink.Permanent(wrapped)
		case http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable:
			if delay, ok := sink.ParseRetryAfter(refused.Response.Header, time.Now()); ok {
				return a.pause(wrapped, delay)
			}
		}
	}
	return wrapped
}

const longestPause = time.Hour

func (a *api) pause(err error, delay time.Duration) error {
	delay = min(delay, longestPause)
	a.limiter.Pause(delay)
	return &sink.RetryAfter{Delay: delay, Err: err}
}

// full is the whole commit: image tags often have the beginning of one only.
func (a *api) full(ctx context.Context, client *github.Client, s sink.Source) (string, error) {
	if len(s.Commit) == 40 || len(s.Commit) == 64 {
		return s.Commit, nil
	}
	sha, _, err := client.Repositories.GetCommitSHA1(ctx, s.Owner, s.Name, s.Commit, "")
	if err != nil {
		return "", a.judge("look for commit "+s.Commit+" of "+s.Repository(), err)
	}
	return sha, nil
}
