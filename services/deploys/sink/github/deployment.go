package github

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/go-github/v92/github"

	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

const (
	task = "deploy"
	// pagesSearched is the maximum number of pages that are searched for a deployment or a comment.
	pagesSearched = 10
	pageSize      = 100
)

// Deployments is the sink that creates one deployment for each rollout, or for each run of an environment, and updates
// its state.
type Deployments struct {
	*api

	environment, target, description *sink.Template
}

// NewDeployments returns the sink.
func NewDeployments(cfg Config, o Options) (*Deployments, error) {
	api, err := newAPI(cfg, o)
	if err != nil {
		return nil, err
	}
	s := &Deployments{api: api, description: o.Template}
	if s.environment, err = sink.ParseTemplate(cfg.Environment, nil); err != nil {
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
func (s *Deployments) Traits() sink.Traits { return sink.Traits{Latest: true} }

// Thread implements sink.Sink.
func (s *Deployments) Thread(f events.DeployFact) (string, bool) {
	if _, ok := s.finder.Find(f); !ok || deploymentOf(f.Fact) == "" {
		return "", false
	}
	return rolloutOf(f)
}

// rolloutOf returns the name of the rollout, or of the run of an environment, that a fact belongs to.
func rolloutOf(f events.DeployFact) (string, bool) {
	switch {
	case f.Rollout != nil:
		return f.Rollout.ID, true
	case f.Environment != nil:
		return f.Workload.ClusterUID + "/" + f.Environment.Group + "/" + f.Environment.Run, true
	default:
		return "", false
	}
}

// deployment is the stored state of a deployment.
type deployment struct {
	ID    int64  `json:"id"`
	State string `json:"state"`
}

// payload identifies the rollout of a deployment.
type payload struct {
	Lockstep string `json:"lockstep_rollout"`
}

// Deliver implements sink.Sink.
func (s *Deployments) Deliver(ctx context.Context, d sink.Delivery) error {
	known, err := sink.LoadThread[deployment](ctx, d)
	if err != nil {
		return err
	}
	state := deploymentOf(d.Fact.Fact)
	if known.ID != 0 && known.State == state && !d.Requested {
		return nil
	}
	source, _ := s.finder.Find(d.Fact)
	client, err := s.open()
	if err != nil {
		return err
	}
	if known.ID == 0 {
		if known.ID, err = s.ensure(ctx, client, source, d); err != nil {
			return err
		}
		if err := sink.SaveThread(ctx, d, known); err != nil {
			return err
		}
	}
	view := sink.NewView(d.Fact, source)
	request, err := s.status(view, state)
	if err != nil {
		return retry.Permanent(err)
	}
	_, _, err = client.Repositories.CreateDeploymentStatus(ctx, source.Owner, source.Name, known.ID, request)
	if err != nil {
		return s.newError(fmt.Sprintf("write status %s of deployment %d of %s", state, known.ID, source.Repository()), err)
	}
	known.State = state
	return sink.SaveThread(ctx, d, known)
}

func (s *Deployments) status(view sink.View, state string) (github.DeploymentStatusRequest, error) {
	description, err := s.description.Execute(view)
	if err != nil {
		return github.DeploymentStatusRequest{}, err
	}
	target, err := s.target.Execute(view)
	if err != nil {
		return github.DeploymentStatusRequest{}, err
	}
	request := github.DeploymentStatusRequest{
		State: state, Description: new(sink.Truncate(maxDescription, description)), AutoInactive: new(true),
	}
	if link := string(sink.NewURL(target)); link != "" {
		request.LogURL = &link
	}
	if link := string(view.URL); link != "" {
		request.EnvironmentURL = &link
	}
	return request, nil
}

// ensure returns the deployment of the rollout, and creates it if it does not exist.
func (s *Deployments) ensure(
	ctx context.Context, client *github.Client, source sink.Source, d sink.Delivery,
) (int64, error) {
	environment, err := s.environment.Execute(sink.NewView(d.Fact, source))
	if err != nil {
		return 0, retry.Permanent(err)
	}
	sha, err := s.fullCommit(ctx, client, source)
	if err != nil {
		return 0, err
	}
	id, err := s.find(ctx, client, source, sha, environment, d.Thread)
	if err != nil || id != 0 {
		return id, err
	}
	created, _, err := client.Repositories.CreateDeployment(ctx, source.Owner, source.Name, github.DeploymentRequest{
		Ref: sha, Task: new(task), AutoMerge: new(false), RequiredContexts: []string{},
		Payload: payload{Lockstep: d.Thread}, Environment: &environment,
		Description:          new(sink.Truncate(maxDescription, d.Fact.Workload.Namespace+"/"+d.Fact.Workload.Name)),
		TransientEnvironment: &s.cfg.Transient, ProductionEnvironment: &s.cfg.Production,
	})
	if err != nil {
		return 0, s.newError("create the deployment of commit "+sha+" of "+source.Repository(), err)
	}
	return created.GetID(), nil
}

func (s *Deployments) find(
	ctx context.Context, client *github.Client, source sink.Source, sha, environment, rollout string,
) (int64, error) {
	options := &github.DeploymentsListOptions{
		SHA: sha, Task: task, Environment: environment, ListOptions: github.ListOptions{PerPage: pageSize},
	}
	for range pagesSearched {
		page, response, err := client.Repositories.ListDeployments(ctx, source.Owner, source.Name, options)
		if err != nil {
			return 0, s.newError("list the deployments of "+source.Repository(), err)
		}
		for _, candidate := range page {
			if ofRollout(candidate.Payload, rollout) {
				return candidate.GetID(), nil
			}
		}
		if response.NextPage == 0 {
			break
		}
		options.Page = response.NextPage
	}
	return 0, nil
}

// ofRollout reports whether a payload belongs to a rollout. GitHub returns an object, or a string that contains one.
func ofRollout(raw json.RawMessage, rollout string) bool {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text)
	}
	var p payload
	return json.Unmarshal(raw, &p) == nil && p.Lockstep == rollout
}
