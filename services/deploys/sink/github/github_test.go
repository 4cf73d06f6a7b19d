package github_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/github"
	"lockstep.internal/services/deploys/sink/github/githubtest"
	"lockstep.internal/services/deploys/sink/sinktest"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	repo   = "acme/shop"
	commit = "9fceb02d0ae598e95dc970b74767f19372d61af8"
	newer  = "1d2e3f4d0ae598e95dc970b74767f19372d61af8"
)

type bundle struct {
	t       *testing.T
	server  *githubtest.Server
	repo    *githubtest.Repository
	threads *sinktest.Threads
	limiter *sink.Limiter
	client  *http.Client
	cfg     github.Config
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{
		t:       t,
		server:  githubtest.Start(t),
		threads: &sinktest.Threads{},
		limiter: sink.NewLimiter(),
		cfg:     github.DefaultConfig(),
	}
	b.cfg.Source.Repositories = []string{"*/*"}
	b.repo = b.server.Repo(repo)
	b.repo.Commits = []string{commit, newer}
	b.cfg.APIURL, b.cfg.TokenFile = config.URL(b.server.URL), config.SecretValue(githubtest.Token)
	b.client = sink.NewClient(sink.ClientOptions{
		Limiter: b.limiter,
		Timeout: 5 * time.Second,
		Network: egress.Config{AllowPrivate: true},
	})
	t.Cleanup(b.client.CloseIdleConnections)
	require.Empty(t, b.cfg.Validate())
	require.Empty(t, b.cfg.Missing())
	return b
}

func (b *bundle) options() github.Options {
	return github.Options{Name: "test", Client: b.client, Limiter: b.limiter}
}

func (b *bundle) statuses() *github.Statuses {
	b.t.Helper()
	s, err := github.NewStatuses(b.cfg, b.options())
	require.NoError(b.t, err)
	return s
}

func (b *bundle) deployments() *github.Deployments {
	b.t.Helper()
	s, err := github.NewDeployments(b.cfg, b.options())
	require.NoError(b.t, err)
	return s
}

func (b *bundle) comments() *github.Comments {
	b.t.Helper()
	s, err := github.NewComments(b.cfg, b.options())
	require.NoError(b.t, err)
	return s
}

// deliver delivers the facts as one delivery.
func (b *bundle) deliver(s sink.Sink, facts ...events.DeployFact) error {
	b.t.Helper()
	last := facts[len(facts)-1]
	thread, ok := s.Thread(last)
	require.True(b.t, ok)
	b.server.Settle()
	defer b.server.Settle()
	return s.Deliver(b.t.Context(), sink.Delivery{
		Key: "k", Thread: thread, Fact: last, Earlier: facts[:len(facts)-1], Threads: b.threads, Attempt: 1,
	})
}

func fact(name events.Fact, revision int) events.DeployFact {
	return events.DeployFact{
		Fact: name, Sequence: revision * 10, Provenance: events.ProvenanceObserved,
		Workload: events.Workload{
			ClusterUID: "c1", Namespace: "shop", Kind: "deployment", Name: "checkout",
			Annotations: map[string]string{
				"lockstep.dev/commit":     commit,
				"lockstep.dev/repository": "https://127.0.0.1/" + repo + ".git",
			},
		},
		Rollout: &events.Rollout{ID: "c1/u/" + string(rune('0'+revision)), Revision: revision, Change: "updated"},
	}
}

func environment(name events.Fact, run, url string) events.DeployFact {
	return events.DeployFact{
		Fact: name, Sequence: 1, Provenance: events.ProvenanceObserved,
		Workload: events.Workload{
			ClusterUID: "c1", Namespace: "shop", Kind: "group", Name: "pr-318",
			Annotations: map[string]string{"lockstep.dev/repository": repo},
		},
		Environment: &events.Environment{Group: "pr-318", Run: run, Url: url, Expected: 2, Members: []events.Member{
			{Namespace: "shop", Kind: "deployment", Name: "api"}, {Namespace: "shop", Kind: "deployment", Name: "web"},
		}},
	}
}

func (b *bundle) states() string {
	var list []string
	for _, s := range b.repo.Statuses {
		list = append(list, s.State)
	}
	return strings.Join(list, " ")
}

func TestCommitStatusShowsStateOfRollout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.statuses()
	ms := 14297
	done := fact(events.FactCompleted, 42)
	done.DurationMs = &ms
	for _, f := range []events.DeployFact{
		fact(events.FactStarted, 42), fact(events.FactStalled, 42), fact(events.FactRecovered, 42), done, done,
	} {
		require.NoError(t, b.deliver(s, f))
	}
	require.Equal(t, "pending failure pending success", b.states(), "an unchanged status is not written again")
	require.Equal(t, githubtest.Status{
		SHA: commit, State: "success", Context: "lockstep/shop/checkout", Description: "completed, revision 42, after 14s",
	}, b.repo.Statuses[3])

	stalled := fact(events.FactStalled, 43)
	stalled.Reason, stalled.Message = "ErrImagePull", "image shop:3 cannot be pulled: not found"
	require.NoError(t, b.deliver(s, stalled))
	require.Equal(t, "stalled, revision 43: image shop:3 cannot be pulled: not found", b.repo.Statuses[4].Description)

	for _, name := range []events.Fact{events.FactDrained, events.FactScaleStarted, events.FactGap} {
		_, ok := s.Thread(fact(name, 42))
		require.False(t, ok, name)
	}
	elsewhere := fact(events.FactStarted, 42)
	elsewhere.Workload.Annotations["lockstep.dev/repository"] = "https://gitlab.example.com/acme/shop"
	_, ok := s.Thread(elsewhere)
	require.False(t, ok)
}

func TestWaitingFactsBecomeOneStatusAndOldRolloutsAreIgnored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.statuses()
	require.NoError(t, b.deliver(s, fact(events.FactStarted, 1), fact(events.FactStalled, 1), fact(events.FactStarted, 2),
		fact(events.FactSuperseded, 1)))
	require.Equal(t, "pending", b.states())
	require.Contains(t, b.repo.Statuses[0].Description, "revision 2")
	require.NoError(t, b.deliver(s, fact(events.FactSuperseded, 1)))
	require.NoError(t, b.deliver(s, fact(events.FactCompleted, 2)))
	require.Equal(t, "pending success", b.states())
}

func TestAbbreviatedCommitIsResolved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.Source.ImagePattern = `^registry\.example\.com/(?P<repository>[^:]+):(?P<commit>[0-9a-f]+)$`
	f := fact(events.FactCompleted, 1)
	f.Workload.Annotations = nil
	f.Rollout.Images = []events.Image{{Container: "c", Image: "registry.example.com/" + repo + ":9fceb02"}}
	require.NoError(t, b.deliver(b.statuses(), f))
	require.Equal(t, commit, b.repo.Statuses[0].SHA)
	f.Rollout.Images[0].Image = "registry.example.com/" + repo + ":abcdef0"
	require.True(t, retry.IsPermanent(b.deliver(b.statuses(), f)))
}

func TestLastStatusesAreReservedForEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.statuses()
	thread, _ := s.Thread(fact(events.FactStarted, 1))
	require.NoError(t, b.threads.Put(t.Context(), thread, []byte(`{"sent":948,"state":"success"}`)))
	for i := range 4 {
		require.NoError(t, b.deliver(s, fact(events.FactStarted, i+1)))
		require.NoError(t, b.deliver(s, fact(events.FactCompleted, i+1)))
	}
	require.Equal(t, "pending success success success success", b.states())
	require.Contains(t, b.repo.Statuses[4].Description, "revision 4")

	for range 1000 {
		b.repo.Statuses = append(b.repo.Statuses, githubtest.Status{SHA: commit, Context: "lockstep/shop/checkout"})
	}
	err := b.deliver(s, fact(events.FactStalled, 521))
	require.True(t, retry.IsPermanent(err))
	require.ErrorContains(t, err, "maximum number of statuses")
}

func TestSinkPausesAfterRateLimitOfGitHub(t *testing.T) {
	t.Parallel()
	const secondary = `{"message":"You have exceeded a secondary rate limit",` +
		`"documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api` +
		`#about-secondary-rate-limits"}`
	var after *sink.RetryAfter
	b := setup(t)
	s := b.statuses()
	b.server.Faults.Writes(sinktest.Status(403, http.Header{"Retry-After": {"1"}}, secondary))
	require.ErrorAs(t, b.deliver(s, fact(events.FactStarted, 1)), &after)
	require.Equal(t, time.Second, after.Delay)
	require.NoError(t, b.deliver(s, fact(events.FactStarted, 1)), "the delivery waits for the end of the pause")

	for code, body := range map[int]string{403: secondary, 429: `{"message":"later"}`, 503: `{"message":"later"}`} {
		b := setup(t)
		b.server.Faults.Writes(sinktest.Status(code, http.Header{"Retry-After": {"3600"}}, body))
		require.ErrorAs(t, b.deliver(b.statuses(), fact(events.FactStarted, 1)), &after)
		require.Equal(t, time.Hour, after.Delay)
		require.Positive(t, b.limiter.Paused(), "other requests wait too")
	}

	for body, header := range map[string]http.Header{
		`{"message":"You have exceeded a secondary rate limit",` +
			`"documentation_url":"https://docs.github.com/rest/x#about-secondary-rate-limits"}`: {},
		`{"message":"API rate limit exceeded"}`: {
			"X-RateLimit-Remaining": {"0"},
			"X-RateLimit-Reset":     {"99999999999"},
			"X-RateLimit-Limit":     {"5000"},
		},
	} {
		b := setup(t)
		b.server.Faults.Writes(sinktest.Status(403, header, body))
		err := b.deliver(b.statuses(), fact(events.FactStarted, 1))
		require.ErrorAs(t, err, &after)
		require.GreaterOrEqual(t, after.Delay, 50*time.Second)
		require.LessOrEqual(t, after.Delay, time.Hour)
	}
}

// The real limits and windows, scaled down. The limiter stays below them. Its windows are twice as long, because
// requests may arrive closer together than they were sent.
func TestLimiterStaysBelowLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.server.Limit.Windows = []sinktest.Window{
		{Count: 80, Length: 300 * time.Millisecond}, {Count: 100, Length: 3 * time.Second},
	}
	b.limiter = sink.NewLimiter(sink.Limit{
		Count:  80,
		Window: 600 * time.Millisecond,
		Burst:  10,
	}, sink.Limit{Count: 100, Window: 6 * time.Second, Burst: 80})
	b.client = sink.NewClient(sink.ClientOptions{Limiter: b.limiter, Network: egress.Config{AllowPrivate: true}})
	t.Cleanup(b.client.CloseIdleConnections)
	s := b.statuses()
	for i := range 45 {
		require.NoError(t, b.deliver(s, fact(events.FactStarted, i+1)))
		require.NoError(t, b.deliver(s, fact(events.FactCompleted, i+1)))
	}
	rejected, _ := b.server.Limit.Refused()
	require.Zero(t, rejected)
}

func TestPermanentAndTemporaryErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change    func(b *bundle)
		permanent bool
	}{
		"no such repository": {
			func(b *bundle) { b.cfg.Source.RepositoryKeys, b.cfg.Source.Repository = nil, "acme/none" }, true,
		},
		"no such commit":      {func(b *bundle) { b.repo.Commits = nil }, true},
		"another token":       {func(b *bundle) { b.cfg.TokenFile = config.SecretValue("other") }, false},
		"no token":            {func(b *bundle) { b.cfg.TokenFile = config.SecretFile("/none") }, false},
		"5xx":                 {func(b *bundle) { b.server.Faults.Next(sinktest.Status(502, nil, "<html>")) }, false},
		"dropped request":     {func(b *bundle) { b.server.Faults.Next(sinktest.Drop()) }, false},
		"incomplete response": {func(b *bundle) { b.server.Faults.Next(sinktest.TruncateResponse()) }, false},
		"timeout": {func(b *bundle) {
			b.server.Faults.Next(sinktest.Hang(false))
			b.client.Transport = sink.NewTransport(sink.ClientOptions{
				Limiter: b.limiter, Timeout: 100 * time.Millisecond, Network: egress.Config{AllowPrivate: true},
			})
		}, false},
		"redirect to another host": {func(b *bundle) {
			b.server.Faults.Next(sinktest.Status(307, http.Header{"Location": {"https://elsewhere.example.com/"}}, ""))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			tc.change(b)
			err := b.deliver(b.statuses(), fact(events.FactStarted, 1))
			require.Error(t, err)
			require.Equal(t, tc.permanent, retry.IsPermanent(err), err)
			require.NotContains(t, err.Error(), githubtest.Token)
		})
	}
}

func TestRolloutIsOneDeployment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.deployments()
	for _, name := range []events.Fact{
		events.FactStarted, events.FactProgressed, events.FactStalled, events.FactCompleted,
	} {
		require.NoError(t, b.deliver(s, fact(name, 1)))
	}
	require.NoError(t, b.deliver(s, fact(events.FactStarted, 2)))
	require.Len(t, b.repo.Deployments, 2)
	d := b.repo.Deployments[0]
	require.Equal(t, "shop", d.Environment)
	require.Equal(t, commit, d.SHA)
	var states []string
	for _, s := range d.States {
		states = append(states, s.State)
	}
	require.Equal(t, []string{"in_progress", "failure", "success"}, states)

	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentReady, commit, "https://pr-318.example.com")))
	d = b.repo.Deployments[2]
	require.Equal(t, "pr-318", d.Environment)
	require.Equal(t, []githubtest.DeploymentStatus{{
		State:          "success",
		Description:    "environment ready",
		EnvironmentURL: "https://pr-318.example.com",
	}}, d.States)
}

// The response is lost, or the process crashes before it stores the deployment.
func TestDeploymentIsFoundAfterCrash(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sinktest.Fault{
		"lost response":       sinktest.DropResponse(),
		"incomplete response": sinktest.TruncateResponse(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.server.Faults.Writes(fault)
			require.Error(t, b.deliver(b.deployments(), fact(events.FactStarted, 1)))
			require.Len(t, b.repo.Deployments, 1)
			for range 150 {
				other := *b.repo.Deployments[0]
				other.Payload = []byte(`"{\"lockstep_rollout\":\"another\"}"`)
				b.repo.Deployments = append(b.repo.Deployments, &other)
			}
			require.NoError(t, b.deliver(b.deployments(), fact(events.FactStarted, 1)))
			require.Len(t, b.repo.Deployments, 151)
			require.Len(t, b.repo.Deployments[0].States, 1)
			b.threads.Forget()
			require.NoError(t, b.deliver(b.deployments(), fact(events.FactCompleted, 1)))
			require.Len(t, b.repo.Deployments, 151)
		})
	}
}

func (b *bundle) bodies() []string {
	var list []string
	for _, c := range b.repo.Pulls[318].Comments {
		list = append(list, c.Body)
	}
	return list
}

func TestEnvironmentHasOneCommentWhenReady(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.repo.Pulls[318] = &githubtest.Pull{State: "open"}
	s := b.comments()
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentStarted, commit, "")))
	require.Empty(t, b.bodies(), "no comment before the environment is ready")
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentReady, commit, "https://pr-318.example.com")))
	require.Len(t, b.bodies(), 1)
	first := b.bodies()[0]
	require.Contains(t, first, "is ready")
	require.Contains(t, first, "**<https://pr-318.example.com>**")
	require.Contains(t, first, "`9fceb02`")
	require.Contains(t, first, "shop/web")

	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentStarted, newer, "")))
	require.Len(t, b.bodies(), 1, "the comment is edited")
	require.Contains(t, b.bodies()[0], "being brought up to date")
	require.Contains(t, b.bodies()[0], "https://pr-318.example.com", "it still shows the previous run")
	require.Contains(t, b.bodies()[0], "| Rolling out | `1d2e3f4` |")
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentFailed, newer, "")))
	require.Contains(t, b.bodies()[0], "could not be brought up to date")
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentReady, newer, "https://pr-318.example.com")))
	require.Contains(t, b.bodies()[0], "| Shows | `1d2e3f4` |")
	calls := len(b.server.Calls())
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentReady, newer, "https://pr-318.example.com")))
	require.Len(t, b.server.Calls(), calls, "an unchanged comment is not written")
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentRemoved, newer, "")))
	require.NotContains(t, b.bodies()[0], "https://")
	require.Len(t, b.bodies(), 1)
}

func TestEnvironmentHasACommentWhenItsFirstRunFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.repo.Pulls[318] = &githubtest.Pull{State: "open"}
	s := b.comments()
	failed := environment(events.FactEnvironmentFailed, commit, "https://pr-318.example.com")
	failed.Message = "deployment web: image shop/web:2 cannot be pulled: not found"
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentStarted, commit, "")))
	require.NoError(t, b.deliver(s, failed))
	require.Len(t, b.bodies(), 1)
	require.Contains(t, b.bodies()[0], "could not be started")
	require.Contains(t, b.bodies()[0], "not found")
	require.NotContains(t, b.bodies()[0], "https://", "nothing answers there")
	require.NotContains(t, b.bodies()[0], "Shows")

	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentStarted, newer, "")))
	require.Len(t, b.bodies(), 1, "the comment is edited")
	require.Contains(t, b.bodies()[0], "being brought up to date")
	require.NoError(t, b.deliver(s, environment(events.FactEnvironmentReady, newer, "https://pr-318.example.com")))
	require.Len(t, b.bodies(), 1)
	require.Contains(t, b.bodies()[0], "is ready")
}

func TestCommentIsFoundAfterCrashAndRecreatedWhenDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pull := &githubtest.Pull{State: "open"}
	b.repo.Pulls[318] = pull
	for range 150 {
		pull.Comments = append(pull.Comments, &githubtest.Comment{ID: -1, Body: "another comment"})
	}
	b.server.Faults.Writes(sinktest.DropResponse())
	ready := environment(events.FactEnvironmentReady, commit, "https://pr-318.example.com")
	require.Error(t, b.deliver(b.comments(), ready))
	require.Len(t, pull.Comments, 151)
	require.NoError(t, b.deliver(b.comments(), ready))
	b.threads.Forget()
	require.NoError(t, b.deliver(b.comments(), ready))
	require.Len(t, pull.Comments, 151)

	pull.Comments = pull.Comments[:150]
	require.NoError(t, b.deliver(b.comments(),
		environment(events.FactEnvironmentReady, newer, "https://pr-318.example.com")))
	require.Len(t, pull.Comments, 151)
}

func TestPullRequestIsFound(t *testing.T) {
	t.Parallel()
	named := environment(events.FactEnvironmentReady, commit, "https://x.example.com")
	named.Workload.Annotations["lockstep.dev/pull-request"] = "7"
	unnamed := environment(events.FactEnvironmentReady, commit, "https://x.example.com")
	unnamed.Environment.Group = "feature"
	nothing := environment(events.FactEnvironmentReady, "sha256:abc", "https://x.example.com")
	nothing.Environment.Group = "feature"
	for name, tc := range map[string]struct {
		fact events.DeployFact
		want int
	}{
		"from the annotation":   {named, 7},
		"from the group name":   {environment(events.FactEnvironmentReady, "sha256:abc", "https://x.example.com"), 318},
		"from the commit":       {unnamed, 12},
		"none without a commit": {nothing, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.repo.Pulls = map[int]*githubtest.Pull{
				7:   {},
				318: {},
				11:  {Head: commit, State: "closed"},
				12:  {Head: commit, State: "open"},
			}
			require.NoError(t, b.deliver(b.comments(), tc.fact))
			for number, pull := range b.repo.Pulls {
				require.Equal(t, number == tc.want, len(pull.Comments) == 1, number)
			}
		})
	}
}

func TestInvalidConfigurationIsReported(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"token_file", "source.repositories"}, github.DefaultConfig().Missing())
	cfg := github.DefaultConfig()
	cfg.APIURL, cfg.Context, cfg.PullRequestPattern = "x", "{{", "no group"
	require.Len(t, cfg.Validate(), 3)
}
