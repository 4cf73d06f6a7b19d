package apirequest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestLimitsNameTheField(t *testing.T) {
	t.Parallel()
	limits := apirequest.Limits{Text: 8, Entries: 2, Timeout: apirequest.DefaultTimeout}
	check := func(m proto.Message) error { return limits.Check(m.ProtoReflect(), "") }
	settings := func(s *runnersv1.RunnerSettings) proto.Message {
		return &runnersv1.CreateRunnerRequest{Settings: s}
	}
	require.NoError(t, check(settings(&runnersv1.RunnerSettings{Description: "12345678", Tags: []string{"a", "b"}})))
	for want, s := range map[string]*runnersv1.RunnerSettings{
		"settings.description has 9 bytes, the limit is 8": {Description: strings.Repeat("x", 9)},
		"settings.description has a zero byte":             {Description: "\x00"},
		"settings.tags has 3 entries, the limit is 2":      {Tags: []string{"a", "b", "c"}},
		"settings.tags has 9 bytes, the limit is 8":        {Tags: []string{strings.Repeat("x", 9)}},
	} {
		err := check(settings(s))
		require.ErrorContains(t, err, want)
		require.True(t, fault.Is(err, errcode.InvalidArgument))
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	size, err := apirequest.PageSize(0, 100)
	require.NoError(t, err)
	require.Equal(t, 100, size)
	for _, wrong := range []int32{-1, apirequest.MaxPageSize + 1} {
		_, err := apirequest.PageSize(wrong, 100)
		require.ErrorContains(t, err, "page_size")
	}
	id, err := apirequest.PageToken(apirequest.NextPage([]int64{9, 7}, 2, func(id int64) int64 { return id }))
	require.NoError(t, err)
	require.EqualValues(t, 7, id)
	require.Empty(t, apirequest.NextPage([]int64{9}, 2, func(id int64) int64 { return id }))
	for _, wrong := range []string{"x", "0", "-1"} {
		_, err := apirequest.PageToken(wrong)
		require.ErrorContains(t, err, "page_token: not a token")
	}
	require.ErrorContains(t, apirequest.RequireID("job_id", 0), "job_id is missing")
}
