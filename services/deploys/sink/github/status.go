package github

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/go-github/v92/github"

	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

const (
	// maxStatuses is the maximum number of statuses of a commit and context. reservedStatuses of them are reserved for the
	// ends of rollouts.
	maxStatuses      = 1000
	reservedStatuses = 50
	maxDescription   = 140
	maxContext       = 255
)

const defaultDescription = `{{title .Fact}}{{if .Revision}}, revision {{.Revision}}{{end}}` +
	`{{if .Duration}}, after {{duration .Duration}}{{end}}` +
	`{{if and .Message (or (eq .Fact "stalled") (eq .Fact "blocked") (eq .Fact "environment_failed"))}}: {{.Message}}` +
	`{{else if .Reason}} ({{.Reason}}){{end}}`

// Statuses is the sink that sets a commit status for each workload.
type Statuses struct {
	*api

	context, target, description *sink.Template
}

// NewStatuses returns the sink.
func NewStatuses(cfg Config, o Options) (*Statuses, error) {
	api, err := newAPI(cfg, o)
	if err != nil {
		return nil, err
	}
	s := &Statuses{api: api, description: o.Template}
	if s.context, err = sink.ParseTemplate(cfg.Context, nil); err != nil {
		return nil, err
	}
	if s.target, err = sink.ParseTemplate(cfg.TargetURL, nil); err != nil {
		return nil, err
	}
	if s.description == nil {
		s.description, err = sink.ParseTemplate(defaultDescription, nil)
	}
	return s, err
}

// Traits implements sink.Sink.
func (s *Statuses) Traits() sink.Traits { return sink.Traits{Latest: true} }

// Thread implements sink.Sink.
func (s *Statuses) Thread(f events.DeployFact) (string, bool) {
	source, ok := s.finder.Find(f)
	if !ok || statusOf(f.Fact) == "" {
		return "", false
	}
	name, err := s.context.Execute(sink.NewView(f, source))
	return source.Repository() + "@" + source.Commit + " " + name, err == nil
}

// statusRecord is the stored state of a status.
type statusRecord struct {
	Workload    string `json:"workload"`
	Revision    int    `json:"revision"`
	State       string `json:"state"`
	Description string `json:"description"`
	Sent        int    `json:"sent"`
}

// isOutdated reports whether the fact belongs to an earlier rollout than the last written status.
func (t statusRecord) isOutdated(f events.DeployFact) bool {
	return f.Rollout != nil && t.Workload == workload(f) && f.Rollout.Revision < t.Revision
}

func workload(f events.DeployFact) string {
	w := f.Workload
	return w.ClusterUID + "/" + w.Namespace + "/" + w.Kind + "/" + w.Name + "/" + w.UID
}

// Deliver implements sink.Sink.
func (s *Statuses) Deliver(ctx context.Context, d sink.Delivery) error {
	last, err := sink.LoadThread[statusRecord](ctx, d)
	if err != nil {
		return err
	}
	var latest *events.DeployFact
	next := last
	for _, f := range d.All() {
		if next.isOutdated(f) || statusOf(f.Fact) == "" {
			continue
		}
		latest = &f
		next.Workload = workload(f)
		if f.Rollout != nil {
			next.Revision = f.Rollout.Revision
		}
	}
	if latest == nil {
		return nil
	}
	source, _ := s.finder.Find(*latest)
	status, err := s.status(*latest, source)
	if err != nil {
		return retry.Permanent(err)
	}
	next.State, next.Description = status.GetState(), status.GetDescription()
	if next.State == last.State && next.Description == last.Description && !d.Requested {
		return sink.SaveThread(ctx, d, next)
	}
	if last.Sent >= maxStatuses-reservedStatuses && next.State == pending {
		return nil
	}
	client, err := s.open()
	if err != nil {
		return err
	}
	sha, err := s.fullCommit(ctx, client, source)
	if err != nil {
		return err
	}
	if _, _, err := client.Repositories.CreateStatus(ctx, source.Owner, source.Name, sha, status); err != nil {
		return s.newError(fmt.Sprintf("write status %s of commit %s of %s", next.State, sha, source.Repository()), err)
	}
	next.Sent++
	return sink.SaveThread(ctx, d, next)
}

func (s *Statuses) status(f events.DeployFact, source sink.Source) (github.RepoStatus, error) {
	view := sink.NewView(f, source)
	name, err := s.context.Execute(view)
	if err != nil {
		return github.RepoStatus{}, err
	}
	description, err := s.description.Execute(view)
	if err != nil {
		return github.RepoStatus{}, err
	}
	target, err := s.target.Execute(view)
	if err != nil {
		return github.RepoStatus{}, err
	}
	status := github.RepoStatus{
		State: new(statusOf(f.Fact)), Context: new(sink.Truncate(maxContext, name)),
		Description: new(sink.Truncate(maxDescription, description)),
	}
	if link := string(cmp.Or(sink.NewURL(target), view.URL)); link != "" {
		status.TargetURL = &link
	}
	return status, nil
}
