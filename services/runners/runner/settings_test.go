package runner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/routable"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/runner"
)

func TestNormalizedSettings(t *testing.T) {
	t.Parallel()
	s := runner.Settings{Tags: []string{" linux", "docker", "", "linux"}, UserIDs: []int64{3, 1, 3}}
	n := s.Normalized()
	require.Equal(t, []string{"docker", "linux"}, n.Tags)
	require.Equal(t, []int64{1, 3}, n.UserIDs)
	require.Nil(t, n.GroupIDs)
	require.Equal(t, []int64{3, 1, 3}, s.UserIDs, "the caller keeps its slices")
	require.Equal(t, n, n.Normalized())
}

func TestInvalidSettingsAreAllNamed(t *testing.T) {
	t.Parallel()
	require.NoError(t, runner.Settings{RunUntagged: true}.Validate())
	require.NoError(t, runner.Settings{Tags: []string{"linux"}, MaximumTimeout: time.Hour}.Validate())
	err := runner.Settings{
		Description: strings.Repeat("x", runner.MaxText+1), MaintenanceNote: "a\x00b",
		MaximumTimeout: -time.Second, UserIDs: []int64{0}, GroupIDs: make([]int64, runner.MaxServed+1),
	}.Validate()
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	for _, field := range []string{"description", "maintenance_note", "tags", "maximum_timeout", "user_ids", "group_ids"} {
		require.ErrorContains(t, err, field+": ")
	}
	for text, s := range map[string]runner.Settings{
		"add a tag, or set run_untagged": {},
		"51 tags are more than 50":       {Tags: make([]string, 51)},
		"comma":                          {Tags: []string{"a,b"}},
		"not UTF-8":                      {Tags: []string{"\xff"}},
		"whole seconds":                  {RunUntagged: true, MaximumTimeout: time.Millisecond},
		"between 0 and":                  {RunUntagged: true, MaximumTimeout: runner.MaxTimeout + time.Second},
	} {
		require.ErrorContains(t, s.Validate(), text)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		created, contacted time.Duration // before now; contacted 0 for never
		want               runner.Status
	}{
		"contact just now":              {365 * 24 * time.Hour, time.Millisecond, runner.Online},
		"contact in the last 2 hours":   {365 * 24 * time.Hour, 2*time.Hour - 1, runner.Online},
		"contact before 2 hours":        {365 * 24 * time.Hour, 2 * time.Hour, runner.Offline},
		"contact in the last 7 days":    {365 * 24 * time.Hour, 7*24*time.Hour - 1, runner.Offline},
		"contact before 7 days":         {365 * 24 * time.Hour, 7 * 24 * time.Hour, runner.Stale},
		"no contact of a new runner":    {time.Hour, 0, runner.NeverContacted},
		"no contact of an old runner":   {7 * 24 * time.Hour, 0, runner.Stale},
		"a clock that differs a little": {0, -time.Second, runner.Online},
	} {
		var contacted time.Time
		if c.contacted != 0 {
			contacted = now.Add(-c.contacted)
		}
		require.Equal(t, c.want, runner.StatusOf(now.Add(-c.created), contacted, now), name)
		m := runner.Manager{CreatedAt: now.Add(-c.created), ContactedAt: contacted}
		require.Equal(t, c.want, m.Status(now), name)
		r := runner.Runner{CreatedAt: now.Add(-c.created)}
		older := runner.Manager{}
		require.Equal(t, c.want, r.Status([]runner.Manager{older, m, older}, now), name)
	}
	require.Equal(t, runner.NeverContacted, (&runner.Runner{CreatedAt: now}).Status(nil, now))
}

func TestTokens(t *testing.T) {
	t.Parallel()
	token, hash, err := runner.NewToken(routable.Payload{Cell: "local", Organization: 1})
	require.NoError(t, err)
	again, err := runner.HashToken(token)
	require.NoError(t, err)
	require.Equal(t, hash, again)
	personal, err := routable.New(routable.Personal, routable.Payload{})
	require.NoError(t, err)
	for _, text := range []string{"", "glrt-x", token[:len(token)-1], personal} {
		_, err := runner.HashToken(text)
		require.ErrorIs(t, err, runner.ErrMalformedToken)
	}
	_, _, err = runner.NewToken(routable.Payload{User: -1})
	require.ErrorIs(t, err, routable.ErrInvalidPayload)
}

func TestLinksKeepTheOwner(t *testing.T) {
	t.Parallel()
	r := runner.Runner{Type: runner.ProjectType, ProjectIDs: []int64{9}}
	linked := r.WithProject(4)
	require.Equal(t, []int64{9, 4}, linked.ProjectIDs)
	require.Equal(t, linked, linked.WithProject(4))
	require.Equal(t, int64(9), linked.OwnerProject())
	require.Equal(t, []int64{9}, r.ProjectIDs)
	require.Equal(t, []int64{9}, linked.WithoutProject(4).ProjectIDs)
	require.Equal(t, []int64{9, 4}, linked.ProjectIDs)
	require.Zero(t, (&runner.Runner{}).OwnerProject())
}
