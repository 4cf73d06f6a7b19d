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

// Build builds the sinks. Sinks with the same destination and credential share its limits.
func Build(configs []Config) (*Sinks, error) {
	made := &Sinks{}
	limiters := &sink.Limiters{}
	for _, c := range configs {
		entry, err := made.entry(c, limiters)
		if err != nil {
			made.Close()
			return nil, fmt.Errorf("sink %s: %w", c.Name, err)
		}
		made.Entries = append(made.Entries, entry)
	}
	return made, nil
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
		if template, err = sink.ParseTemplate(c.Template, k.escape); err != nil {
			return sink.Entry{}, err
		}
	}
	made, err := k.make(client, limiter, template)
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
		Name: c.Name, Type: c.Type, Sink: made, Filter: filter, Backfill: c.Backfill, Retry: c.Retry, MaxPending: c.Waiting,
	}, nil
}

// kind holds the differences between types of sinks.
type kind struct {
	destination string
	limits      []sink.Limit
	facts       []string // default filter; empty means all
	escape      func(string) string
	make        func(*http.Client, *sink.Limiter, *sink.Template) (sink.Sink, error)
}

func kindOf(c Config) (kind, error) {
	hub := kind{destination: c.GitHub.Destination(), limits: github.Limits()}
	hubOptions := func(client *http.Client, limiter *sink.Limiter, template *sink.Template) github.Options {
		return github.Options{Name: c.Name, Template: template, Client: client, Limiter: limiter}
	}
	switch c.Type {
	case GitHubStatus:
		hub.facts = github.StatusFacts()
		hub.make = func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
			return github.NewStatuses(c.GitHub, hubOptions(client, limiter, template))
		}
		return hub, nil
	case GitHubDeployment:
		hub.facts = github.DeploymentFacts()
		hub.make = func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
			return github.NewDeployments(c.GitHub, hubOptions(client, limiter, template))
		}
		return hub, nil
	case GitHubComment:
		hub.facts, hub.escape = github.CommentFacts(), github.Escape
		hub.make = func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
			return github.NewComments(c.GitHub, hubOptions(client, limiter, template))
		}
		return hub, nil
	case Slack:
		return kind{
			destination: c.Slack.Destination(), limits: slack.Limits(), facts: slack.Facts(), escape: slack.Escape,
			make: func(client *http.Client, limiter *sink.Limiter, template *sink.Template) (sink.Sink, error) {
				return slack.New(c.Slack, slack.Options{Template: template, Client: client, Limiter: limiter})
			},
		}, nil
	case BigQuery:
		return kind{
			destination: "bigquery/" + c.Name,
			make: func(client *http.Client, _ *sink.Limiter, _ *sink.Template) (sink.Sink, error) {
				return bigquery.New(c.BigQuery, bigquery.Options{Transport: client.Transport, Timeout: c.Timeout}), nil
			},
		}, nil
	case Webhook:
		return kind{
			destination: "webhook/" + c.Name,
			make: func(client *http.Client, _ *sink.Limiter, template *sink.Template) (sink.Sink, error) {
				return webhook.New(c.Webhook, webhook.Options{Template: template, Client: client, Parallel: c.Parallel}), nil
			},
		}, nil
	default:
		return kind{}, fmt.Errorf("type %q does not exist", c.Type)
	}
}
