package api_test

import (
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/postgres"
)

func uuidOf(t *testing.T, text string) uuid.UUID {
	t.Helper()
	id, err := uuid.Parse(text)
	require.NoError(t, err)
	return id
}

func allTime() *deploysv1.RolloutFilter {
	return &deploysv1.RolloutFilter{
		Since: timestamppb.New(start().Add(-1000 * time.Hour)),
		Until: timestamppb.New(start().Add(1000 * time.Hour)),
	}
}

// Rollouts start while a client reads pages; several have the same start time. The pages contain each rollout that
// existed at the first page exactly once.
func TestPagesAreStableWhileRolloutsStart(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	var before []string
	for n := range 20 {
		r := b.rollout(agent, func(r *history.Rollout) { r.StartedAt = start().Add(time.Duration(n/7) * time.Microsecond) })
		b.put(r)
		before = append(before, r.ID)
	}
	api := b.as(reader)
	var seen []string
	token := ""
	for page := 0; ; page++ {
		got, err := api.ListRollouts(t.Context(), connect.NewRequest(&deploysv1.ListRolloutsRequest{
			PageSize:  3,
			PageToken: token,
		}))
		require.NoError(t, err)
		require.LessOrEqual(t, len(got.Msg.GetRollouts()), 3)
		for i, r := range got.Msg.GetRollouts() {
			if i > 0 {
				require.False(t, r.GetStartedAt().AsTime().After(got.Msg.GetRollouts()[i-1].GetStartedAt().AsTime()),
					"newest first")
			}
		}
		seen = append(seen, ids(got.Msg.GetRollouts())...)
		if token = got.Msg.GetNextPageToken(); token == "" {
			break
		}
		b.put(b.rollout(agent, func(r *history.Rollout) {
			r.StartedAt = start().Add(time.Hour + time.Duration(page)*time.Second)
		}))
	}
	require.ElementsMatch(t, before, seen)
}

func TestExcessiveRequestsAreRefused(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.put(b.rollout(agent))
	api := b.as(reader)
	token := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	many := map[string]string{}
	for n := range 101 {
		many[fmt.Sprint(n)] = ""
	}
	for name, request := range map[string]*deploysv1.ListRolloutsRequest{
		"page_size -1":                      {PageSize: -1},
		"page_size 501":                     {PageSize: 501},
		"page_token not base64":             {PageToken: "???"},
		"page_token without an id":          {PageToken: token("x")},
		"page_token without a time":         {PageToken: token("now id")},
		"page_token before all times":       {PageToken: token(fmt.Sprint(math.MinInt64) + " id")},
		"page_token after all times":        {PageToken: token(fmt.Sprint(math.MaxInt64) + " id")},
		"page_token with a zero byte":       {PageToken: token("1 i\x00d")},
		"filter.name with a zero byte":      {Filter: &deploysv1.RolloutFilter{Name: "a\x00"}},
		"filter.labels with a zero byte":    {Filter: &deploysv1.RolloutFilter{Labels: map[string]string{"a": "\x00"}}},
		"filter.labels, zero byte in a key": {Filter: &deploysv1.RolloutFilter{Labels: map[string]string{"\x00": "a"}}},
		"filter.labels, too many":           {Filter: &deploysv1.RolloutFilter{Labels: many}},
		"filter.states, too many":           {Filter: &deploysv1.RolloutFilter{States: make([]deploysv1.RolloutState, 101)}},
		"filter.states unspecified":         {Filter: &deploysv1.RolloutFilter{States: []deploysv1.RolloutState{0}}},
		"filter.states unknown":             {Filter: &deploysv1.RolloutFilter{States: []deploysv1.RolloutState{99}}},
		"filter.changes unknown":            {Filter: &deploysv1.RolloutFilter{Changes: []deploysv1.Change{99}}},
		"filter.commit too long":            {Filter: &deploysv1.RolloutFilter{Commit: strings.Repeat("c", 5000)}},
		"filter.since not a valid time": {
			Filter: &deploysv1.RolloutFilter{Since: &timestamppb.Timestamp{Seconds: math.MaxInt64}},
		},
		"filter.until not a valid time": {Filter: &deploysv1.RolloutFilter{Until: &timestamppb.Timestamp{Nanos: -1}}},
		"filter.since before the range of PostgreSQL": {
			Filter: &deploysv1.RolloutFilter{Since: &timestamppb.Timestamp{Seconds: math.MinInt64}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := api.ListRollouts(t.Context(), connect.NewRequest(request))
			f := requireCode(t, errcode.InvalidArgument, err)
			require.Equal(t, strings.TrimSuffix(strings.Fields(name)[0], ","), f.Details["field"], "%v", f)
		})
	}
	t.Run("others", func(t *testing.T) {
		t.Parallel()
		_, err := api.GetRollout(t.Context(), connect.NewRequest(&deploysv1.GetRolloutRequest{}))
		requireCode(t, errcode.InvalidArgument, err)
		_, err = api.GetRollout(t.Context(), connect.NewRequest(&deploysv1.GetRolloutRequest{Id: "a\x00"}))
		requireCode(t, errcode.InvalidArgument, err)
		_, err = api.GetStats(t.Context(), connect.NewRequest(&deploysv1.GetStatsRequest{Workloads: 1001}))
		requireCode(t, errcode.InvalidArgument, err)
		_, err = api.GetStats(t.Context(), connect.NewRequest(&deploysv1.GetStatsRequest{Filter: &deploysv1.RolloutFilter{
			Since: timestamppb.New(start()), Until: timestamppb.New(start()),
		}}))
		requireCode(t, errcode.InvalidArgument, err)
		for _, request := range []*deploysv1.WatchRolloutsRequest{
			{Ended: -1}, {Ended: 501}, {Filter: &deploysv1.RolloutFilter{Name: "\x00"}},
		} {
			watch, err := api.WatchRollouts(t.Context(), connect.NewRequest(request))
			require.NoError(t, err)
			require.False(t, watch.Receive())
			requireCode(t, errcode.InvalidArgument, watch.Err())
			require.NoError(t, watch.Close())
		}
		_, err = b.as(admin).BackfillSink(t.Context(), connect.NewRequest(&deploysv1.BackfillSinkRequest{
			Name:  "chat",
			Since: &timestamppb.Timestamp{Nanos: -1},
		}))
		requireCode(t, errcode.InvalidArgument, err)
		_, err = b.as(admin).BackfillSink(t.Context(), connect.NewRequest(&deploysv1.BackfillSinkRequest{
			Name:  "chat",
			Since: timestamppb.Now(),
		}))
		requireCode(t, errcode.NotFound, err)
	})
}

// The limit applies to the uncompressed size. The body of a caller without a token is not read.
func TestCompressedRequestIsLimitedByUncompressedSize(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	for with, want := range map[string]errcode.Code{
		"": errcode.Unauthenticated, "Bearer " + b.token(reader): errcode.ResourceExhausted,
	} {
		api := b.with(with, connect.WithSendGzip())
		_, err := api.GetRollout(t.Context(),
			connect.NewRequest(&deploysv1.GetRolloutRequest{Id: strings.Repeat("a", 4<<20)}))
		requireCode(t, want, err)
	}
}

func TestMiddleFactsOfLongRolloutAreOmitted(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	r := b.rollout(agent, func(r *history.Rollout) { r.LastSequence = 1500 })
	facts := make([]postgres.Fact, 1500)
	for n := range facts {
		name := "progressed"
		if n == 0 {
			name = "started"
		}
		at := start().Add(time.Duration(n) * time.Second)
		facts[n] = postgres.Fact{
			ID:             fmt.Sprint("f", n),
			Workload:       uuidOf(t, r.Workload),
			Sequence:       int64(n + 1),
			Fact:           name,
			RolloutID:      r.ID,
			OccurredAt:     at,
			ObservedAt:     at,
			Data:           "{}",
			StreamSequence: int64(n + 1),
		}
	}
	b.save(postgres.Rows{Rollouts: []history.Rollout{r}, Facts: facts})
	got, err := b.as(reader).GetRollout(t.Context(), connect.NewRequest(&deploysv1.GetRolloutRequest{Id: r.ID}))
	require.NoError(t, err)
	require.Len(t, got.Msg.GetFacts(), 1000)
	require.EqualValues(t, 500, got.Msg.GetFactsOmitted())
	require.Equal(t, "started", got.Msg.GetFacts()[0].GetFact())
	require.EqualValues(t, 502, got.Msg.GetFacts()[1].GetSequence())
	require.EqualValues(t, 1500, got.Msg.GetFacts()[999].GetSequence())
}
