package processes

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/access"
)

// maxQuestions is the number of agents that are asked at the same time.
const maxQuestions = 32

// Rounds are shared by the replicas.
type Rounds interface {
	// Claim reports whether this replica does the round that begins at a time. No other one does it then.
	Claim(ctx context.Context, round time.Time, interval time.Duration) (bool, error)
}

// Agents are asked.
type Agents interface {
	Work(ctx context.Context, workspace access.Entry) (workspaceagent.WorkReport, error)
}

// Publisher publishes that programs have worked.
type Publisher interface {
	Worked(ctx context.Context, workspace string, at time.Time, programs []workspaceagent.WorkedProgram) error
}

// Options of a [Watch]. All are required.
type Options struct {
	// Interval is the time between two rounds.
	Interval  time.Duration
	Table     *access.Table
	Rounds    Rounds
	Agents    Agents
	Publisher Publisher
	Now       func() time.Time
	Logger    *slog.Logger
}

// Watch asks the agents of workspaces. Create it with New.
type Watch struct {
	Options

	metrics

	mu sync.Mutex
	// known is what the last questions to the workspaces of the last round have found.
	known map[string]answer
}

// answer is what is known of a workspace.
type answer struct {
	// published is the last time of work that was published; zero for none.
	published time.Time
	// failed is true if the agent did not answer.
	failed bool
}

// New returns a watch. Run starts it.
func New(o Options) *Watch {
	return &Watch{Options: o, metrics: newMetrics(), known: map[string]answer{}}
}

// Run does rounds until ctx ends. Rounds begin at multiples of the interval, at all replicas.
func (w *Watch) Run(ctx context.Context) {
	for {
		now := w.Now()
		round := now.Truncate(w.Interval).Add(w.Interval)
		if retry.Sleep(ctx, round.Sub(now)) != nil {
			return // ctx has ended
		}
		w.Round(ctx, round)
	}
}

// Round asks all workspaces whose programs count, unless another replica does.
func (w *Watch) Round(ctx context.Context, round time.Time) {
	entries := w.Table.CountingProcesses()
	w.forget(entries)
	if len(entries) == 0 {
		return
	}
	mine, err := w.Rounds.Claim(ctx, round, w.Interval)
	if err != nil {
		if ctx.Err() == nil {
			w.Logger.WarnContext(ctx, "programs in workspaces were not checked; retrying", logkey.Error(err))
		}
		return
	}
	if !mine {
		return
	}
	var questions errgroup.Group
	questions.SetLimit(maxQuestions)
	for _, e := range entries {
		questions.Go(func() error {
			w.ask(ctx, e)
			return nil
		})
	}
	_ = questions.Wait() // they return no error
}

// forget removes what is known of other workspaces.
func (w *Watch) forget(entries []access.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := make(map[string]answer, len(entries))
	for _, e := range entries {
		kept[e.ID] = w.known[e.ID]
	}
	w.known = kept
}

// ask asks one agent, and publishes that programs have worked, if that is news.
func (w *Watch) ask(ctx context.Context, e access.Entry) {
	before := w.answerOf(e.ID)
	report, err := w.Agents.Work(ctx, e)
	now := w.Now()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		w.checks.WithLabelValues(resultFailed).Inc()
		if !before.failed {
			w.Logger.WarnContext(ctx, "a workspace does not report its programs: they are no activity",
				slog.String(logkey.WorkspaceID, e.ID), logkey.Error(err))
		}
		w.learn(e.ID, answer{published: before.published, failed: true})
		return
	}
	after := answer{published: before.published}
	if at, news := w.news(report, before, now); news {
		w.checks.WithLabelValues(resultWorking).Inc()
		if err := w.Publisher.Worked(ctx, e.ID, at, report.Programs); err != nil {
			w.Logger.WarnContext(ctx, "activity was not published; retrying",
				slog.String(logkey.WorkspaceID, e.ID), logkey.Error(err))
		} else {
			after.published = at
		}
	} else {
		w.checks.WithLabelValues(resultIdle).Inc()
	}
	w.learn(e.ID, after)
}

// news returns when programs have worked, and whether that is later than what was published. Half of an interval is
// more than the time of an answer on the network, and less than the time between two answers.
func (w *Watch) news(report workspaceagent.WorkReport, before answer, now time.Time) (time.Time, bool) {
	if report.WorkedMSAgo == nil {
		return time.Time{}, false
	}
	const longest = int64(365 * 24 * time.Hour / time.Millisecond)
	at := now.Add(-time.Duration(min(*report.WorkedMSAgo, longest)) * time.Millisecond)
	return at, at.Sub(before.published) > w.Interval/2
}

func (w *Watch) answerOf(id string) answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known[id]
}

func (w *Watch) learn(id string, a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[id] = a
}
