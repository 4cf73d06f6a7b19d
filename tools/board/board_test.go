package board_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/tools/board"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// web is a rollout of five pods: two new ones, one of them not available, and three old ones.
func web(change ...func(*deploysv1.Rollout)) *deploysv1.Rollout {
	r := &deploysv1.Rollout{
		Id:             "c/u/7/h",
		Workload:       &deploysv1.Workload{Namespace: "shop", Kind: "deployment", Name: "web"},
		Revision:       7,
		Change:         deploysv1.Change_CHANGE_UPDATED,
		State:          deploysv1.RolloutState_ROLLOUT_STATE_RUNNING,
		Strategy:       "RollingUpdate",
		StartedAt:      timestamppb.New(start()),
		Images:         []*deploysv1.Image{{Container: "c", Image: "registry.example/shop/web:1.3"}},
		PreviousImages: []*deploysv1.Image{{Container: "c", Image: "registry.example/shop/web:1.2"}},
		Counts:         &deploysv1.Counts{Desired: 5, Total: 5, Updated: 2, Available: 4},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func completed(r *deploysv1.Rollout) {
	r.State, r.Counts = deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED, &deploysv1.Counts{
		Desired:   5,
		Total:     5,
		Updated:   5,
		Available: 5,
	}
	r.Duration, r.UpdatedAt = durationpb.New(41*time.Second), timestamppb.New(start().Add(41*time.Second))
}

func TestLinesAtAnyWidth(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		100: `shop/deployment/web  r7 updated  web:1.2 → 1.3                                                   12s
  [████████▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒] 2 new, 3 old, 4 available of 5
  waits for 3 new pods to be created`,
		60: `shop/deployment/web  r7 updated  web:1.2 → 1.3           12s
  [█████▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒] 2 new, 3 old, 4 available of 5
  waits for 3 new pods to be created`,
		40: `shop/deployment/web  r7 updated  we… 12s
  [█▓▒▒▒] 2 new, 3 old, 4 available of 5
  waits for 3 new pods to be created`,
		20: `shop/deployment… 12s
  2 new, 3 old, 4 a…
  waits for 3 new p…`,
	} {
		lines := board.Lines([]*deploysv1.Rollout{web()}, start().Add(12*time.Second), board.Page{Width: width, Height: 20})
		require.Equal(t, want, strings.Join(lines, "\n"), "width %d", width)
	}
}

func TestLinesFitTheScreen(t *testing.T) {
	t.Parallel()
	hostile := web(func(r *deploysv1.Rollout) {
		r.Stalled, r.Message = true, "no\x1b[2J progress\r\nat all 进度 "+strings.Repeat("x", 300)
		r.Workload.Name = strings.Repeat("n", 63)
	})
	rollouts := []*deploysv1.Rollout{
		hostile,
		web(),
		web(func(r *deploysv1.Rollout) { r.Counts = nil }),
		web(func(r *deploysv1.Rollout) { r.Counts = &deploysv1.Counts{} }),
	}
	for width := range 130 {
		for _, height := range []int{0, 1, 2, 3, 4, 7, 12, 50} {
			lines := board.Lines(rollouts, start().Add(3*time.Hour), board.Page{Width: width, Height: height})
			require.LessOrEqual(t, len(lines), max(1, height))
			for _, line := range append(lines, board.Ended(hostile, board.Page{Width: width})) {
				require.LessOrEqual(t, utf8.RuneCountInString(line), width, "width %d: %q", width, line)
				require.NotContains(t, line, "\x1b")
				require.NotContains(t, line, "\n")
			}
		}
	}
}

func TestColoursDoNotChangeTheWidth(t *testing.T) {
	t.Parallel()
	page := board.Page{Width: 80, Height: 20}
	plain := board.Lines([]*deploysv1.Rollout{web()}, start(), page)
	page.Colour = true
	coloured := strings.Join(board.Lines([]*deploysv1.Rollout{web()}, start(), page), "\n")
	require.Contains(t, coloured, "\x1b[32m")
	for _, code := range []string{"\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"} {
		coloured = strings.ReplaceAll(coloured, code, "")
	}
	require.Equal(t, strings.Join(plain, "\n"), coloured)
}

func TestLinesCountRolloutsThatDoNotFit(t *testing.T) {
	t.Parallel()
	four := []*deploysv1.Rollout{web(), web(), web(), web()}
	lines := board.Lines(four, start(), board.Page{Width: 80, Height: 8})
	require.Len(t, lines, 7)
	require.Equal(t, "and 2 more", lines[6])
	require.Equal(t, []string{"4 rollouts"}, board.Lines(four, start(), board.Page{Width: 80, Height: 3}))
	require.Equal(t, []string{"no rollout is running"}, board.Lines(nil, start(), board.Page{Width: 80, Height: 3}))
}

func TestBars(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		counts *deploysv1.Counts
		want   string
	}{
		{&deploysv1.Counts{Desired: 5, Total: 5, Updated: 5, Available: 5}, "██████████"},
		{&deploysv1.Counts{Desired: 5, Total: 5, Available: 5}, "▒▒▒▒▒▒▒▒▒▒"},
		{&deploysv1.Counts{Desired: 2, Total: 1, Updated: 1}, "▓▓▓▓▓·····"},
		{&deploysv1.Counts{Desired: 1000, Total: 1000, Updated: 1, Available: 1000}, "█▒▒▒▒▒▒▒▒▒"},
		{&deploysv1.Counts{}, "··········"},
		{nil, "··········"},
	} {
		numbers := board.Counts(tc.counts)
		line := board.Lines([]*deploysv1.Rollout{web(func(r *deploysv1.Rollout) { r.Counts = tc.counts })}, start(),
			board.Page{Width: 15 + len(numbers), Height: 3})[1]
		require.Equal(t, "  ["+tc.want+"] "+numbers, line)
	}
}

func TestWaits(t *testing.T) {
	t.Parallel()
	counts := func(desired, total, updated, available int32) func(*deploysv1.Rollout) {
		return func(r *deploysv1.Rollout) {
			r.Counts = &deploysv1.Counts{Desired: desired, Total: total, Updated: updated, Available: available}
		}
	}
	for want, change := range map[string]func(*deploysv1.Rollout){
		"waits for 1 pod to become available":           counts(5, 5, 5, 4),
		"waits for 2 old pods to be deleted":            counts(5, 7, 5, 5),
		"waits for its controller to report completion": counts(5, 5, 5, 5),
		"waits for its first pods":                      func(r *deploysv1.Rollout) { r.Counts = nil },
		"paused until it is resumed":                    func(r *deploysv1.Rollout) { r.Paused = true },
		"the cluster refuses to create its pods":        func(r *deploysv1.Rollout) { r.Blocked = true },
		"a quota does not allow its pods": func(r *deploysv1.Rollout) {
			r.Blocked, r.Message = true, "a quota\ndoes not allow its pods"
		},
		"no progress (3 new pods to be created): ProgressDeadlineExceeded": func(r *deploysv1.Rollout) {
			r.Stalled,
				r.Reason = true, "ProgressDeadlineExceeded"
		},
		"waits for 3 old pods to be deleted by a user": func(r *deploysv1.Rollout) { r.Strategy = "OnDelete" },
	} {
		require.Equal(t, want, board.Waits(web(change)))
	}
	line := board.Lines([]*deploysv1.Rollout{web(func(r *deploysv1.Rollout) { r.Paused = true })}, start(),
		board.Page{Width: 80, Height: 3})[2]
	require.Equal(t, "  PAUSED: paused until it is resumed", line)
}

func TestImages(t *testing.T) {
	t.Parallel()
	image := func(container, name string) *deploysv1.Image {
		return &deploysv1.Image{Container: container, Image: name}
	}
	for want, r := range map[string]*deploysv1.Rollout{
		"web:1":            {Images: []*deploysv1.Image{image("c", "r.example:5000/a/web:1")}},
		"web:0123456789ab": {Images: []*deploysv1.Image{image("c", "web@sha256:0123456789abcdef")}},
		"old:1 → new:1": {
			Images:         []*deploysv1.Image{image("c", "new:1"), image("d", "same:1")},
			PreviousImages: []*deploysv1.Image{image("c", "old:1"), image("d", "same:1")},
		},
		"": {
			Images:         []*deploysv1.Image{image("c", "web:1")},
			PreviousImages: []*deploysv1.Image{image("c", "web:1")},
		},
	} {
		require.Equal(t, want, board.Images(r))
	}
}

func TestEnded(t *testing.T) {
	t.Parallel()
	require.Equal(t, "✓ shop/deployment/web  r7 updated  completed  web:1.2 → 1.3                41s",
		board.Ended(web(completed), board.Page{Width: 78}))
	failed := web(func(r *deploysv1.Rollout) {
		r.State, r.Message, r.EndedAt = deploysv1.RolloutState_ROLLOUT_STATE_CANCELLED, "its workload was deleted",
			timestamppb.New(start().Add(95*time.Second))
	})
	require.Equal(t, "✗ shop/deployment/web  r7 updated  cancelled  web:1.2 → 1.3  its workload was deleted 1m35s",
		board.Ended(failed, board.Page{Width: 91}))
}

func TestChanges(t *testing.T) {
	t.Parallel()
	stalled := web(func(r *deploysv1.Rollout) { r.Stalled, r.Message = true, "no news" })
	drained := web(completed, func(r *deploysv1.Rollout) { r.DrainedAt = timestamppb.New(start()) })
	for _, tc := range []struct {
		before, after *deploysv1.Rollout
		want          []string
	}{
		{nil, web(), []string{"started, updated, web:1.2 → 1.3", "2 new, 3 old, 4 available of 5"}},
		{web(), web(), nil},
		{web(), stalled, []string{"stalled: no news"}},
		{stalled, web(), []string{"recovered"}},
		{stalled, web(func(r *deploysv1.Rollout) { r.Stalled, r.Message = true, "no image" }), []string{"stalled: no image"}},
		{web(), web(func(r *deploysv1.Rollout) { r.Paused = true }), []string{"paused"}},
		{web(func(r *deploysv1.Rollout) { r.Blocked = true }), web(), []string{"no longer blocked"}},
		{web(), web(func(r *deploysv1.Rollout) { r.Counts.Updated = 3 }), []string{"3 new, 2 old, 4 available of 5"}},
		{stalled, web(completed), []string{"completed after 41s"}},
		{web(completed), drained, []string{"drained: the last old pod is gone"}},
		{nil, drained, []string{
			"started, updated, web:1.2 → 1.3", "completed after 41s",
			"drained: the last old pod is gone",
		}},
	} {
		require.Equal(t, tc.want, board.Changes(tc.before, tc.after))
	}
}

func TestBoardReportsEachChangeOnce(t *testing.T) {
	t.Parallel()
	var b board.Board
	before, changed := b.Take(web())
	require.Nil(t, before)
	require.True(t, changed)
	_, changed = b.Take(web())
	require.False(t, changed, "the same message again")
	stuck := web(func(r *deploysv1.Rollout) {
		r.Id, r.Stalled, r.StartedAt = "stuck", true, timestamppb.New(start().Add(time.Hour))
	})
	_, _ = b.Take(stuck)
	require.Len(t, b.Running(), 2)
	require.Equal(t, "stuck", b.Running()[0].GetId(), "stuck rollouts come first")
	before, changed = b.Take(web(completed))
	require.True(t, changed)
	require.True(t, proto.Equal(web(), before))
	require.Len(t, b.Running(), 1)
	_, changed = b.Take(web())
	require.False(t, changed, "an older message after a restart of the watch")
	require.True(t, b.Knows("c/u/7/h"))
	require.Len(t, b.Running(), 1)
}
