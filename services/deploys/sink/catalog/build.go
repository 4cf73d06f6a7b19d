package catalog

import (
	"fmt"
	"net/http"

	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/bigquery"
	"lockstep.internal/services/deploys/sink/github"
	"lockstep.internal/services/deploys/sink/slack"
	"lockstep.internal/services/deploys/sink/webhook"
)

// Sinks holds the entries for [sink.New].
type Sinks struct {
	Entries []sink.Entry

	clients []*http.Client
}

// Close closes idle connections. Call it after the set of sinks has stopped.
func (s *Sinks) Close() {
	for _, c := range s.clients {
		c.CloseIdleConnections()
	}
}

// Build creates the sinks. Sinks with the same destination and credential share its limits.
func Build(configs []Config) (*Sinks, error) {
	sinks := &Sinks{}
	limiters := &sink.Limiters{}
	for _, c := range configs {
		entry, err := sinks.entry(c, limiters)
		if err != nil {
			sinks.Close()
			return nil, fmt.Errorf("sink %s: %w", c.Name, err)
		}
		sinks.Entries = append(sinks.Entries, entry)
	}
	return sinks, nil
}

func (s *Sinks) entry(c Config, limiters *sink.Limiters) (sink.Entry, error) {
	k, err := kindOf(c)
	if err != nil {
		return sink.Entry{}, err
	}
	limiter := limiters.For(k.destination, k.limits...)
	if c.Rate.Count > 0 {
		limiter = limiter.Within(sink.Limit{Count: c.Rate.Count, Window: c.Rate.Window, Burst: c.Rate.Burst})
	}
	options := sink.ClientOptions{Network: c.Network, Timeout: c.Timeout, Limiter: limiter, NoRedirects: c.Type == Webhook}
	client := sink.NewClient(options)
	s.clients = append(s.clients, client)
	var template *sink.Template
	if c.Template != "" {
		if template, err = sink.ParseTemplate(c.Template, k.markup); err != nil {
			return sink.Entry{}, err
		}
	}
	destination, err := k.newSink(client, limiter, template)
	if err != nil {
		return sink.Entry{}, err
	}
	if len(c.Filter.Facts) == 0 {
		c.Filter.Facts = k.facts
	}
	filter, err := sink.NewFilter(c.Filter)
	if err != nil {
		return sink.Entry{}, err
	}
	return sink.Entry{
		Name: c.Name, Type: c.Type, Sink: destination, Filter: filter, Backfill: c.Backfill, Retry: c.Retry,
		MaxPending: c.Waiting,
	}, nil
}

// kind holds the differences between types of sinks.
type kind struct {
	destination string
	limits      []sink.Limit
	facts       []string     // default filter; empty means all
	markup      *sink.Markup // nil: plain text
	newSink     func(*http.Client, *sink.Limiter, *sink.Template) (sink.Sink, error)
}

func kindOf(c Config) (kind, error) {
	gitHub := kind{destination: c.GitHub.Destination(), limits: github.Limits()}
	gitHubOptions := func(client *http.Client, limiter *sink.Limiter, template *sink.Template) github.Options {
		return github.Options{Name: c.Name, Template: template, Client: client, Limiter: limiter}
	}
	switch c.Type {
	case GitHubStatus:
		gitHub.facts = github.StatusFacts()
		gitHub.newSink = func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
			return github.NewStatuses(c.GitHub, gitHubOptions(client, limiter, template))
		}
		return gitHub, nil
	case GitHubDeployment:
		gitHub.facts = github.DeploymentFacts()
		gitHub.newSink = func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
			return github.NewDeployments(c.GitHub, gitHubOptions(client, limiter, template))
		}
		return gitHub, nil
	case GitHubComment:
		gitHub.facts, gitHub.markup = github.CommentFacts(), github.Markup()
		gitHub.newSink = func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
			return github.NewComments(c.GitHub, gitHubOptions(client, limiter, template))
		}
		return gitHub, nil
	case Slack:
		return kind{
			destination: c.Slack.Destination(), limits: slack.Limits(), facts: slack.Facts(), markup: slack.Markup(),
			newSink: func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
				return slack.New(c.Slack, slack.Options{Template: template, Client: client, Limiter: limiter})
			},
		}, nil
	case BigQuery:
		return kind{
			destination: "bigquery/" + c.Name,
			newSink: func(client *http.Client, _ *sink.Limiter, _ *sink.Template) (sink.Sink, error) {
				return bigquery.New(c.BigQuery, bigquery.Options{Transport: client.Transport, Timeout: c.Timeout}), nil
			},
		}, nil
	case Webhook:
		return kind{
			destination: "webhook/" + c.Name,
			newSink: func(client *http.Client, _ *sink.Limiter, template *sink.Template) (sink.Sink, error) {
				return webhook.New(c.Webhook, webhook.Options{Template: template, Client: client, Parallel: c.Parallel}), nil
			},
		}, nil
	default:
		return kind{}, fmt.Errorf("type %q does not exist", c.Type)
	}
}
