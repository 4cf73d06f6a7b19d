package runner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/runner"
)

var now = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// place is that of project 4, in group 3 of group 2 of organization 1.
func place() runner.Place { return runner.Place{Groups: []int64{3, 2}, Organization: 1} }

func TestRunnerTakesJobUnlessARuleKeepsItAway(t *testing.T) {
	t.Parallel()
	settings := runner.Settings{Tags: []string{"docker", "linux"}, RunUntagged: true}
	for name, c := range map[string]struct {
		runner runner.Runner
		job    job.Job
		place  runner.Place
		want   []string
	}{
		"instance":          {runner: runner.Runner{Type: runner.InstanceType}},
		"untagged":          {runner: runner.Runner{Type: runner.InstanceType, Settings: settings}},
		"a subset of tags":  {runner: runner.Runner{Settings: settings}, job: job.Job{Tags: []string{"linux"}}},
		"all tags":          {runner: runner.Runner{Settings: settings}, job: job.Job{Tags: []string{"docker", "linux"}}},
		"one tag is absent": {runner: runner.Runner{Settings: settings}, job: job.Job{Tags: []string{"gpu", "linux"}}, want: []string{"runner 12 lacks the tag gpu"}},
		"two are absent":    {runner: runner.Runner{Settings: settings}, job: job.Job{Tags: []string{"a", "b"}}, want: []string{"runner 12 lacks the tags a, b"}},
		"the case of a tag counts": {
			runner: runner.Runner{Settings: settings}, job: job.Job{Tags: []string{"Linux"}},
			want: []string{"runner 12 lacks the tag Linux"},
		},
		"untagged job, runner with tags only": {
			runner: runner.Runner{Settings: runner.Settings{Tags: []string{"linux"}}},
			want:   []string{"runner 12 takes only jobs with tags, and the job has none"},
		},
		"group of the project": {runner: runner.Runner{Type: runner.GroupType, OrganizationID: 1, GroupID: 3}},
		"group above":          {runner: runner.Runner{Type: runner.GroupType, OrganizationID: 1, GroupID: 2}},
		"another group": {
			runner: runner.Runner{Type: runner.GroupType, OrganizationID: 1, GroupID: 6},
			want:   []string{"runner 12 takes jobs of group 6, which does not contain project 4"},
		},
		"linked project": {runner: runner.Runner{Type: runner.ProjectType, OrganizationID: 1, ProjectIDs: []int64{5, 4}}},
		"another project": {
			runner: runner.Runner{Type: runner.ProjectType, OrganizationID: 1, ProjectIDs: []int64{5}},
			want:   []string{"runner 12 is not linked to project 4"},
		},
		"project that moved to another organization": {
			runner: runner.Runner{Type: runner.ProjectType, OrganizationID: 9, ProjectIDs: []int64{4}},
			want:   []string{"runner 12 takes jobs of organization 9, which does not contain project 4"},
		},
		"unknown type": {
			runner: runner.Runner{Type: "x"}, want: []string{`runner 12 has the unknown type "x"`},
		},
		"protected runner, protected job": {
			runner: runner.Runner{Settings: runner.Settings{Protected: true, RunUntagged: true}}, job: job.Job{Protected: true},
		},
		"open runner, protected job": {runner: runner.Runner{Settings: settings}, job: job.Job{Protected: true}},
		"protected runner": {
			runner: runner.Runner{Settings: runner.Settings{Protected: true, RunUntagged: true}},
			want:   []string{"runner 12 takes only protected jobs, and the job is not protected"},
		},
		"paused": {
			runner: runner.Runner{Settings: runner.Settings{Paused: true, RunUntagged: true}},
			want:   []string{"runner 12 is paused"},
		},
		"token expires later": {runner: runner.Runner{TokenExpiresAt: now.Add(time.Second)}},
		"token expired": {
			runner: runner.Runner{TokenExpiresAt: now},
			want:   []string{"runner 12 has a token that expired at 2026-03-04T05:06:00Z"},
		},
		"everything": {
			runner: runner.Runner{
				Type: runner.GroupType, GroupID: 7, TokenExpiresAt: now,
				Settings: runner.Settings{Protected: true, Paused: true, Tags: []string{"x"}},
			},
			job: job.Job{Tags: []string{"gpu"}},
			want: []string{
				"runner 12 takes jobs of group 7, which does not contain project 4", "runner 12 lacks the tag gpu",
				"runner 12 takes only protected jobs, and the job is not protected", "runner 12 is paused",
				"runner 12 has a token that expired at 2026-03-04T05:06:00Z",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, j := c.runner, c.job
			r.ID, j.ProjectID = 12, 4
			if r.Type == "" {
				r.Type = runner.InstanceType
			}
			if r.Tags == nil && !r.Paused && !r.Protected {
				r.RunUntagged = true
			}
			var got []string
			for _, reason := range r.Explain(&j, place(), now) {
				got = append(got, reason.String())
			}
			require.Equal(t, c.want, got)
			require.Equal(t, len(c.want) == 0, r.Takes(&j, place(), now))
		})
	}
}

func TestUnknownProjectHasOnlyRunnersOfTheInstance(t *testing.T) {
	t.Parallel()
	j := job.Job{ProjectID: 4}
	for typ, takes := range map[runner.Type]bool{
		runner.InstanceType: true, runner.GroupType: false, runner.ProjectType: false,
	} {
		r := runner.Runner{
			Type: typ, OrganizationID: 1, ProjectIDs: []int64{4}, Settings: runner.Settings{RunUntagged: true},
		}
		require.Equal(t, takes, r.Takes(&j, runner.Place{}, now), typ)
	}
}

func TestOnlyPauseAndExpiryPass(t *testing.T) {
	t.Parallel()
	require.True(t, runner.RulePaused.Passing())
	require.True(t, runner.RuleExpired.Passing())
	for _, rule := range []runner.Rule{runner.RuleScope, runner.RuleTags, runner.RuleUntagged, runner.RuleProtected} {
		require.False(t, rule.Passing(), rule)
	}
}

func TestTakesAllocatesNothing(t *testing.T) {
	r := runner.Runner{
		Type: runner.GroupType, GroupID: 2, TokenExpiresAt: now.Add(time.Hour),
		Settings: runner.Settings{Tags: []string{"docker", "linux"}, Protected: true},
	}
	j, at := job.Job{ProjectID: 4, Tags: []string{"linux"}, Protected: true}, place()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if !r.Takes(&j, at, now) {
			panic("refused")
		}
	}))
}

type places map[int64]runner.Place

func (p places) Place(id int64) (runner.Place, bool) {
	place, found := p[id]
	return place, found
}

func TestMatcherAsksForThePlaceOfAProject(t *testing.T) {
	t.Parallel()
	known := places{4: place()}
	for typ, takes := range map[runner.Type]map[int64]bool{
		runner.InstanceType: {4: true, 5: true},
		runner.GroupType:    {4: true, 5: false},
		runner.ProjectType:  {4: true, 5: false},
	} {
		m := runner.Matcher{Places: known, Now: now, Runner: &runner.Runner{
			Type: typ, OrganizationID: 1, GroupID: 2, ProjectIDs: []int64{4, 5}, TokenExpiresAt: now.Add(1),
			Settings: runner.Settings{Tags: []string{"linux"}},
		}}
		for project, want := range takes {
			require.Equal(t, want, m.TakesProject(project), "%s, project %d", typ, project)
		}
		require.True(t, m.TakesClass([]string{"linux"}, false))
		require.False(t, m.TakesClass(nil, false))
		m.Now = now.Add(1)
		require.False(t, m.TakesClass([]string{"linux"}, false), "its token has expired")
	}
}

// FuzzTakes checks that a runner takes a job exactly if no rule keeps it away.
func FuzzTakes(f *testing.F) {
	f.Add(uint8(0), uint8(0b101), uint8(0b001), uint8(0), int64(1))
	f.Add(uint8(1), uint8(0), uint8(0), uint8(0xff), int64(-1))
	f.Add(uint8(2), uint8(0b111), uint8(0b111), uint8(0b1010), int64(0))
	f.Fuzz(func(t *testing.T, kind, runnerTags, jobTags, flags uint8, expires int64) {
		tags := func(bits uint8) (tags []string) {
			for i, tag := range []string{"arm", "docker", "gpu", "linux"} {
				if bits&(1<<i) != 0 {
					tags = append(tags, tag)
				}
			}
			return tags
		}
		has := func(bit int) bool { return flags&(1<<bit) != 0 }
		r := runner.Runner{
			Type: append(runner.Types(), "unknown")[kind%4], OrganizationID: int64(kind>>2) % 3, GroupID: int64(kind>>4) % 5,
			ProjectIDs: []int64{int64(kind>>3) % 6, int64(kind >> 5)},
			Settings:   runner.Settings{Tags: tags(runnerTags), RunUntagged: has(0), Protected: has(1), Paused: has(2)},
		}
		if has(3) {
			r.TokenExpiresAt = now.Add(time.Duration(expires))
		}
		j := job.Job{ProjectID: 4, Tags: tags(jobTags), Protected: has(4)}
		at := place()
		if has(5) {
			at = runner.Place{}
		}
		reasons := r.Explain(&j, at, now)
		require.Equal(t, len(reasons) == 0, r.Takes(&j, at, now), "%v", reasons)
		seen := map[runner.Rule]bool{}
		for _, reason := range reasons {
			require.False(t, seen[reason.Rule], "a rule is named twice: %v", reasons)
			seen[reason.Rule] = true
		}
	})
}
