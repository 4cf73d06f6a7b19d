package github

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/go-github/v92/github"

	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

// maxComment is the maximum length of the body of a comment, in characters.
const maxComment = 65536

const defaultComment = `{{if eq .Fact "environment_ready"}}### Preview of {{.Group}} is ready
{{else if eq .Fact "environment_failed"}}### Preview of {{.Group}} could not be {{if .Ready}}brought up to date` +
	`{{else}}started{{end}}
{{else if eq .Fact "environment_removed"}}### Preview of {{.Group}} is gone
{{else}}### Preview of {{.Group}} is being brought up to date
{{end}}{{if and .URL (ne .Fact "environment_removed")}}
**{{.URL}}**
{{end}}
| | |
|---|---|
{{if .Ready}}| Shows | {{code (short .Ready)}} |
{{end}}{{if and (ne .Fact "environment_ready") (ne .Fact "environment_removed")}}` +
	`| {{if eq .Fact "environment_failed"}}Failed{{else}}Rolling out{{end}} | {{code (short .Run)}} |
{{end}}{{range .Members}}| Workload | {{.}} |
{{end}}{{if .Duration}}| Took | {{duration .Duration}} |
{{end}}{{if .Message}}
{{.Message}}
{{end}}`

// Comments is the sink that writes one comment on the pull request of each environment. It creates the comment when the
// environment is ready or failed for the first time and edits it afterwards.
type Comments struct {
	*api

	name     string
	pattern  *regexp.Regexp
	template *sink.Template
}

// NewComments returns the sink.
func NewComments(cfg Config, o Options) (*Comments, error) {
	api, err := newAPI(cfg, o)
	if err != nil {
		return nil, err
	}
	s := &Comments{api: api, name: o.Name, template: o.Template}
	if s.pattern, err = pullRequestPattern(cfg.PullRequestPattern); err != nil {
		return nil, err
	}
	if s.template == nil {
		s.template, err = sink.ParseTemplate(defaultComment, Markup())
	}
	return s, err
}

func pullRequestPattern(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // No pattern.
	}
	pattern, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("not a regular expression: %w", err)
	}
	if pattern.NumSubexp() != 1 {
		return nil, fmt.Errorf("has %d groups, must have one for the number", pattern.NumSubexp())
	}
	return pattern, nil
}

// Traits implements sink.Sink.
func (s *Comments) Traits() sink.Traits { return sink.Traits{Latest: true} }

// Thread implements sink.Sink.
func (s *Comments) Thread(f events.DeployFact) (string, bool) {
	source, ok := s.finder.Repository(f)
	if !ok || f.Environment == nil {
		return "", false
	}
	return source.Repository() + " " + f.Workload.ClusterUID + "/" + f.Workload.Namespace + "/" + f.Environment.Group, true
}

// comment is the stored state of a comment.
type comment struct {
	PullRequest int    `json:"pull_request,omitempty"`
	ID          int64  `json:"id,omitempty"`
	Ready       string `json:"ready,omitempty"` // the last ready run
	URL         string `json:"url,omitempty"`   // of that run
	Body        string `json:"body,omitempty"`  // digest of the body
}

// Deliver implements sink.Sink.
func (s *Comments) Deliver(ctx context.Context, d sink.Delivery) error {
	known, err := sink.LoadThread[comment](ctx, d)
	if err != nil {
		return err
	}
	for _, f := range d.All() {
		if f.Fact == events.FactEnvironmentReady && f.Environment != nil {
			known.Ready, known.URL = f.Environment.Run, f.Environment.Url
		}
	}
	if known.Ready == "" && known.PullRequest == 0 && d.Fact.Fact != events.FactEnvironmentFailed {
		return nil // The environment was neither ready nor failed.
	}
	source, _ := s.finder.Repository(d.Fact)
	marker := s.marker(d.Thread)
	body, err := s.body(d.Fact, source, known, marker)
	if err != nil {
		return retry.Permanent(err)
	}
	digest := sha256.Sum256([]byte(body))
	if known.ID != 0 && known.Body == hex.EncodeToString(digest[:]) && !d.Requested {
		return nil
	}
	client, err := s.open()
	if err != nil {
		return err
	}
	if known.PullRequest == 0 {
		known.PullRequest, err = s.pullRequest(ctx, client, source, d.Fact)
		if err != nil || known.PullRequest == 0 {
			return errors.Join(err, sink.SaveThread(ctx, d, known))
		}
	}
	if known.ID, err = s.write(ctx, client, source, known, marker, body); err != nil {
		return err
	}
	known.Body = hex.EncodeToString(digest[:])
	return sink.SaveThread(ctx, d, known)
}

// marker returns the first line of the comment, which identifies it.
func (s *Comments) marker(thread string) string {
	digest := sha256.Sum256([]byte(s.name + "\n" + thread))
	return "<!-- lockstep " + hex.EncodeToString(digest[:16]) + " -->"
}

func (s *Comments) body(f events.DeployFact, source sink.Source, known comment, marker string) (string, error) {
	view := sink.NewView(f, source)
	view.Ready = known.Ready
	if view.URL == "" || f.Fact != events.FactEnvironmentReady {
		view.URL = sink.NewURL(known.URL)
	}
	text, err := s.template.Execute(view)
	if err != nil {
		return "", err
	}
	return marker + "\n" + sink.Truncate(maxComment-len(marker)-1, text), nil
}

// write edits the comment, or creates it if it does not exist.
func (s *Comments) write(
	ctx context.Context, client *github.Client, source sink.Source, known comment, marker, body string,
) (int64, error) {
	action := fmt.Sprintf("write the comment on pull request %d of %s", known.PullRequest, source.Repository())
	id := known.ID
	if id == 0 {
		var err error
		if id, err = s.find(ctx, client, source, known.PullRequest, marker); err != nil {
			return 0, s.newError(action, err)
		}
	}
	request := github.IssueCommentRequest{Body: body}
	if id != 0 {
		_, response, err := client.Issues.UpdateComment(ctx, source.Owner, source.Name, id, request)
		if err == nil {
			return id, nil
		}
		if response == nil || response.StatusCode != http.StatusNotFound && response.StatusCode != http.StatusGone {
			return 0, s.newError(action, err)
		}
	}
	created, _, err := client.Issues.CreateComment(ctx, source.Owner, source.Name, known.PullRequest, request)
	if err != nil {
		return 0, s.newError(action, err)
	}
	return created.GetID(), nil
}

func (s *Comments) find(
	ctx context.Context, client *github.Client, source sink.Source, number int, marker string,
) (int64, error) {
	options := &github.IssueListCommentsOptions{ListOptions: github.ListOptions{PerPage: pageSize}}
	for range pagesSearched {
		page, response, err := client.Issues.ListComments(ctx, source.Owner, source.Name, number, options)
		if err != nil {
			return 0, err //nolint:wrapcheck // wrapped by the caller
		}
		for _, c := range page {
			if strings.HasPrefix(c.GetBody(), marker) {
				return c.GetID(), nil
			}
		}
		if response.NextPage == 0 {
			break
		}
		options.Page = response.NextPage
	}
	return 0, nil
}

// pullRequest returns the number of the pull request: the one in the fact, or else the open pull request of the commit.
// It returns 0 if there is none.
func (s *Comments) pullRequest(
	ctx context.Context, client *github.Client, source sink.Source, f events.DeployFact,
) (int, error) {
	for _, key := range s.cfg.PullRequestKeys {
		for _, values := range []map[string]string{f.Workload.Annotations, f.Workload.Labels} {
			if n, err := strconv.Atoi(strings.TrimSpace(values[key])); err == nil && n > 0 {
				return n, nil
			}
		}
	}
	if s.pattern != nil {
		if found := s.pattern.FindStringSubmatch(f.Environment.Group); found != nil {
			if n, err := strconv.Atoi(found[1]); err == nil && n > 0 {
				return n, nil
			}
		}
	}
	if source.Commit == "" {
		return 0, nil
	}
	requests, _, err := client.PullRequests.ListPullRequestsWithCommit(ctx, source.Owner, source.Name, source.Commit, nil)
	if err != nil {
		return 0, s.newError("find pull requests of commit "+source.Commit+" of "+source.Repository(), err)
	}
	for _, r := range requests {
		if r.GetState() == "open" {
			return r.GetNumber(), nil
		}
	}
	return 0, nil
}
