package sink_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	f := newFact("checkout", 3, events.FactCompleted)
	f.Workload.Labels = map[string]string{"team": "web"}
	f.Counts = &events.Counts{Desired: 5}
	f.Rollout.Images = []events.Image{{Image: "registry.example.com/shop:1"}}
	for name, tc := range map[string]struct {
		cfg  sink.FilterConfig
		want bool
	}{
		"all":             {sink.FilterConfig{}, true},
		"fact":            {sink.FilterConfig{Facts: []string{"started", "completed"}}, true},
		"other fact":      {sink.FilterConfig{Facts: []string{"started"}}, false},
		"kind":            {sink.FilterConfig{Kinds: []string{"deployment"}}, true},
		"other kind":      {sink.FilterConfig{Kinds: []string{"group"}}, false},
		"cluster":         {sink.FilterConfig{Clusters: []string{"c1"}}, true},
		"other cluster":   {sink.FilterConfig{Clusters: []string{"c2"}}, false},
		"namespace":       {sink.FilterConfig{Namespaces: []string{"x", "sh*"}}, true},
		"other namespace": {sink.FilterConfig{Namespaces: []string{"x"}}, false},
		"name":            {sink.FilterConfig{Names: []string{"check*"}}, true},
		"label":           {sink.FilterConfig{Labels: map[string]string{"team": "web"}}, true},
		"any label":       {sink.FilterConfig{Labels: map[string]string{"team": "*"}}, true},
		"other label":     {sink.FilterConfig{Labels: map[string]string{"team": "db"}}, false},
		"missing label":   {sink.FilterConfig{Labels: map[string]string{"tier": "*"}}, false},
		"expression": {sink.FilterConfig{
			Expression: `labels.team == "web" && revision == 1 && images.exists(i, i.startsWith("registry."))`,
		}, true},
		"expression over the complete fact": {
			sink.FilterConfig{Expression: `fact.counts.desired > 3 && has(fact.rollout) && !has(fact.gap)`}, true,
		},
		"false expression":              {sink.FilterConfig{Expression: `kind == "group"`}, false},
		"failing expression":            {sink.FilterConfig{Expression: `fact.gap.cause != ""`}, false},
		"expression that is not a bool": {sink.FilterConfig{Expression: `fact.fact`}, false},
		"expensive expression": {sink.FilterConfig{
			Expression: `"xxxxxxxxxx".matches("x*") && ` +
				`[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, ` +
				`[1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, a+b+c+d+e > 0)))))`,
		}, false},
		"all variables": {sink.FilterConfig{
			Expression: `cluster == "c1" && agent == 0 && change == "updated" && reason == "" && message == "" && ` +
				`provenance == "observed" && group == "" && run == "" && annotations.size() == 0`,
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			filter, err := sink.NewFilter(tc.cfg)
			require.NoError(t, err)
			require.Equal(t, tc.want, filter.Selects(f))
		})
	}
	require.True(t, (&sink.Filter{}).Selects(f))
	for _, cfg := range []sink.FilterConfig{
		{Expression: "name +"},
		{Expression: `"text"`},
		{Expression: "unknown == 1"},
		{Namespaces: []string{"["}},
		{Names: []string{"["}},
		{Facts: []string{"complete"}},
		{Kinds: []string{"Deployment"}},
	} {
		_, err := sink.NewFilter(cfg)
		require.Error(t, err, cfg)
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	f := newFact("checkout", 3, events.FactRolledBack)
	ms := 64_000
	f.DurationMs, f.Message = &ms, "a <b>"
	f.Rollout.Images = []events.Image{{Image: "shop:1"}, {Image: "db:2"}}
	view := sink.NewView(f, sink.Source{Owner: "acme", Name: "shop", Commit: "9fceb02d0ae598e9"})
	view.URL = "https://x.example"
	for text, want := range map[string]string{
		`{{.Namespace}}/{{.Name}} {{title .Fact}} {{.Title}}`:     "SHOP/CHECKOUT ROLLED BACK ROLLED BACK",
		`{{short .Commit}} of {{.Repository}}`:                    "9FCEB02 of ACME/SHOP",
		`{{duration .Duration}}`:                                  "1M4S",
		`{{join .Images ", "}}`:                                   "SHOP:1, DB:2",
		`{{default "none" .Group}} {{default "none" .Name}}`:      "NONE CHECKOUT",
		`{{.Message}} {{text .Message}} {{code .Name}}`:           "A <B> A <B> [checkout]",
		`{{$x := .Name}}{{with $x}}{{.}}{{end}}{{.URL}}`:          "CHECKOUT(https://x.example)",
		`{{truncate 3 "abcdef"}} {{truncate 20 "short"}}`:         "ABC SHORT",
		`{{json .Name}} {{time .Occurred}} {{upper "a"}}`:         `"CHECKOUT" 2026-05-01T10:00:03Z A`,
		`{{index .Annotation "x"}}{{range .Members}}{{.}}{{end}}`: "",
		`{{.Whole.Sequence}}`:                                     "3",
	} {
		template, err := sink.ParseTemplate(text, shout)
		require.NoError(t, err, text)
		got, err := template.Execute(view)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"{{", "{{.Nothing}}", "{{nothing}}", `{{call .Name}}`} {
		_, err := sink.ParseTemplate(text, nil)
		require.Error(t, err, text)
	}
	endless, err := sink.ParseTemplate(`{{range .Images}}{{range $.Images}}{{.}}{{end}}{{end}}`, nil)
	require.NoError(t, err)
	for range 400 {
		view.Images = append(view.Images, "an image with a long name")
	}
	_, err = endless.Execute(view)
	require.ErrorContains(t, err, "64 KiB")
	// Loops without output and recursive templates are aborted too.
	for _, text := range []string{
		`{{range 1000000000000}}{{end}}`,
		`{{define "a"}}{{range 1000000000000}}{{else}}x{{end}}{{end}}{{if true}}{{with 1}}{{template "a"}}{{end}}{{end}}`,
		`{{range 1000000}}{{range 1000000}}{{if false}}x{{end}}{{end}}{{end}}`,
		`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`,
	} {
		_, err := sink.ParseTemplate(text, nil)
		require.Error(t, err, text)
	}
	short, err := sink.ParseTemplate(`{{range 3}}x{{end}}`, nil)
	require.NoError(t, err)
	text, err := short.Execute(sink.View{})
	require.NoError(t, err)
	require.Equal(t, "xxx", text)
}

func TestSources(t *testing.T) {
	t.Parallel()
	const commit = "9fceb02d0ae598e95dc970b74767f19372d61af8"
	with := func(annotations, labels map[string]string) events.DeployFact {
		f := newFact("checkout", 1, events.FactStarted)
		f.Workload.Annotations, f.Workload.Labels = annotations, labels
		f.Rollout.Images = []events.Image{{Image: "ghcr.io/acme/base:latest"}, {Image: "ghcr.io/acme/shop:sha-9fceb02"}}
		return f
	}
	group := newFact("pr", 1, events.FactEnvironmentReady)
	group.Environment = &events.Environment{Group: "pr", Run: commit}
	anywhere := sink.DefaultSource()
	anywhere.Repositories = []string{"*/*"}
	byImage := sink.SourceConfig{
		Repositories: []string{"acme/*"},
		ImagePattern: `^ghcr\.io/(?P<repository>acme/shop):sha-(?P<commit>[0-9a-f]+)$`,
	}
	for name, tc := range map[string]struct {
		cfg  sink.SourceConfig
		fact events.DeployFact
		want string
	}{
		"annotations": {
			anywhere,
			with(map[string]string{"lockstep.dev/commit": commit, "lockstep.dev/repository": "acme/shop"}, nil),
			"acme/shop@" + commit,
		},
		"a URL": {anywhere, with(map[string]string{
			"org.opencontainers.image.revision": commit,
			"org.opencontainers.image.source":   "https://github.com/acme/shop.git",
		}, nil), "acme/shop@" + commit},
		"an SSH URL": {
			anywhere,
			with(map[string]string{
				"lockstep.dev/commit":     commit,
				"lockstep.dev/repository": "git@github.com:acme/shop.git",
			}, nil),
			"acme/shop@" + commit,
		},
		"labels": {
			anywhere,
			with(nil, map[string]string{"lockstep.dev/commit": "9FCEB02", "lockstep.dev/repository": "acme/shop"}),
			"acme/shop@9fceb02",
		},
		"another host": {anywhere, with(map[string]string{
			"lockstep.dev/commit":     commit,
			"lockstep.dev/repository": "https://gitlab.com/acme/shop",
		}, nil), ""},
		"no commit": {
			anywhere,
			with(map[string]string{"lockstep.dev/commit": "main", "lockstep.dev/repository": "acme/shop"}, nil),
			"",
		},
		"no repository": {anywhere, with(map[string]string{"lockstep.dev/commit": commit}, nil), ""},
		"a path traversal": {
			anywhere,
			with(map[string]string{"lockstep.dev/commit": commit, "lockstep.dev/repository": "acme/.."}, nil),
			"",
		},
		"an image": {byImage, with(nil, nil), "acme/shop@9fceb02"},
		"a configured repository": {
			sink.SourceConfig{CommitKeys: []string{"c"}, Repository: "acme/shop"},
			with(map[string]string{"c": commit}, nil),
			"acme/shop@" + commit,
		},
		"not allowed": {
			sink.SourceConfig{CommitKeys: []string{"c"}, Repository: "acme/shop", Repositories: []string{"other/*"}},
			with(map[string]string{"c": commit}, nil),
			"",
		},
		"not the only repository": {
			sink.SourceConfig{CommitKeys: []string{"c"}, RepositoryKeys: []string{"r"}, Repository: "acme/shop"},
			with(map[string]string{"c": commit, "r": "acme/secrets"}, nil),
			"",
		},
		"no repository is allowed": {
			sink.DefaultSource(),
			with(map[string]string{"lockstep.dev/commit": commit, "lockstep.dev/repository": "acme/shop"}, nil),
			"",
		},
		"allowed": {
			sink.SourceConfig{CommitKeys: []string{"c"}, Repository: "acme/shop", Repositories: []string{"acme/*"}},
			with(map[string]string{"c": commit}, nil),
			"acme/shop@" + commit,
		},
		"a run": {sink.SourceConfig{Repository: "acme/shop"}, group, "acme/shop@" + commit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			finder, err := sink.NewFinder(tc.cfg, "github.com")
			require.NoError(t, err)
			got, ok := finder.Find(tc.fact)
			require.Equal(t, tc.want != "", ok)
			if ok {
				require.Equal(t, tc.want, got.Repository()+"@"+got.Commit)
			}
		})
	}
	require.Len(t, sink.SourceConfig{ImagePattern: "(", Repository: "x", Repositories: []string{"["}}.Validate(), 3)
	require.Len(t, sink.SourceConfig{ImagePattern: "x"}.Validate(), 1)
}

func FuzzFindReturnsValidRepositories(f *testing.F) {
	f.Add("https://github.com/acme/shop.git", "9fceb02")
	f.Add("git@github.com:a/b", "")
	f.Add("//..//", "../..")
	f.Fuzz(func(t *testing.T, repository, commit string) {
		cfg := sink.DefaultSource()
		cfg.Repositories = []string{"*/*"}
		finder, err := sink.NewFinder(cfg, "github.com")
		require.NoError(t, err)
		fact := newFact("a", 1, events.FactStarted)
		fact.Workload.Annotations = map[string]string{"lockstep.dev/commit": commit, "lockstep.dev/repository": repository}
		if s, ok := finder.Find(fact); ok {
			require.Regexp(t, `^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$`, s.Repository())
			require.NotContains(t, []string{".", ".."}, s.Name)
			require.Regexp(t, `^[0-9a-f]{7,64}$`, s.Commit)
		}
	})
}

func FuzzReadNeverPanics(f *testing.F) {
	m := message(f, "id", newFact("a", 1, events.FactStarted))
	f.Add(m.Data, "id")
	f.Add([]byte(`{"customData":null}`), "")
	f.Fuzz(func(t *testing.T, data []byte, id string) {
		header := message(t, "id", newFact("a", 1, events.FactStarted)).Header
		header["ce-id"] = []string{id}
		e, read, err := sink.Read(header, data)
		if err == nil {
			require.NotEmpty(t, e.ID())
			require.NotEmpty(t, read.Fact)
			view := sink.NewView(read, sink.Source{})
			require.Equal(t, string(read.Fact), view.Fact)
			require.False(t, view.Observed.After(time.Unix(1<<60, 0)))
		}
	})
}
