package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/pipelines"
)

func (a *app) pipelineWatch() *cobra.Command {
	var plain, exitStatus bool
	c := &cobra.Command{
		Use: "watch PIPELINE", Short: "Show a pipeline until it has ended", Args: exactly("PIPELINE"),
		ValidArgsFunction: a.completePipelines,
		Long: `Show a pipeline until it has ended, or until Ctrl-C. The symbols of jobs: · waits for other jobs, ◌ for
admission, ○ for a runner; ● running, ◐ canceling, ✓ success, ✗ failed, ! failed and was allowed to, ⊘ canceled,
» skipped. #2 is the second attempt. With --plain, or without a terminal, print one line per change; with -o json, one
message per line. Colours are off if NO_COLOR is set.`,
		Example: "  lockstep pipelines watch 1042\n  lockstep pipelines watch 1042 --plain --exit-status",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := parseID("PIPELINE", args[0])
			if err != nil {
				return err
			}
			api, err := a.runnersAPI()
			if err != nil {
				return err
			}
			last, err := a.watchPipeline(c.Context(), api, id, !plain)
			if err != nil || !exitStatus || !pipelines.Ended(last) {
				return err
			}
			return pipelineResult(last)
		},
	}
	c.Flags().BoolVar(&plain, "plain", false, "print one line per change on a terminal, too")
	c.Flags().BoolVar(&exitStatus, "exit-status", false, "exit status 8 if the pipeline fails or is canceled")
	return c
}

// followFlags are the flags of a command that can show a pipeline until it has ended.
type followFlags struct {
	wait, watch bool
	timeout     time.Duration
}

func (f *followFlags) flags(c *cobra.Command) {
	c.Flags().BoolVar(&f.wait, "wait", false,
		"print one line per change until the pipeline has ended; exit status 8 if it fails or is canceled")
	c.Flags().BoolVar(&f.watch, "watch", false, "as --wait, with the live view of lockstep pipelines watch")
	durationFlag(c, &f.timeout, "timeout", 0,
		"with --wait or --watch: stop after this time, exit status 14; the pipeline continues; default: never")
}

func (f *followFlags) check(c *cobra.Command) error {
	switch {
	case f.timeout < 0:
		return fault.New(errcode.InvalidArgument, "--timeout %s must not be negative", f.timeout)
	case !f.wait && !f.watch && c.Flags().Changed("timeout"):
		return fault.New(errcode.InvalidArgument, "--timeout needs --wait or --watch")
	default:
		return nil
	}
}

// printPipeline prints a pipeline that a command has created or changed, or shows it until it has ended.
func (a *app) printPipeline(
	parent context.Context, api *client.Runners, names *names, f followFlags, response proto.Message,
	p *runnersv1.Pipeline,
) error {
	if !f.wait && !f.watch {
		return a.print(response, pipelineTable(names, time.Now(), p))
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	if f.timeout > 0 {
		ctx, cancel = context.WithTimeout(parent, f.timeout)
		defer cancel()
	}
	last, err := a.watchPipeline(ctx, api, p.GetId(), f.watch)
	if last == nil {
		last = p
	}
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && !pipelines.Ended(last):
		return fault.New(errcode.DeadlineExceeded,
			"pipeline %d has not ended after %s, it is %s: see `lockstep pipelines watch %d`", last.GetId(), f.timeout,
			pipelines.State(last), last.GetId())
	case err != nil:
		return err
	default:
		return pipelineResult(last)
	}
}

// pipelineResult returns an error if a pipeline has failed or was canceled.
func pipelineResult(p *runnersv1.Pipeline) error {
	switch p.GetState() {
	case runnersv1.PipelineState_PIPELINE_STATE_CANCELED:
		return fault.New(errcode.FailedPrecondition, "pipeline %d was canceled", p.GetId())
	case runnersv1.PipelineState_PIPELINE_STATE_FAILED:
		return fault.New(errcode.FailedPrecondition, "pipeline %d failed: see `lockstep pipelines get %d`", p.GetId(),
			p.GetId())
	default:
		return nil
	}
}

// pipelineView shows the versions of a pipeline.
type pipelineView interface {
	// take handles a version. before is nil for the first one.
	take(before, after *runnersv1.Pipeline) error
	// draw is called at an interval with the last version, and after the last one.
	draw(p *runnersv1.Pipeline, now time.Time) error
	// note shows what happens to the stream.
	note(text string)
}

// watchPipeline shows a pipeline until it has ended or ctx is done, and returns its last version, nil if there is none.
// It opens a lost stream again.
func (a *app) watchPipeline(
	ctx context.Context, api *client.Runners, id int64, live bool,
) (*runnersv1.Pipeline, error) {
	w := &pipelineWatch{show: pipelineLines{a}}
	switch file, onTerminal := a.terminal(); {
	case a.output != outputTable:
		w.show = pipelineMessages{a}
	case live && onTerminal:
		screen := &pipelineScreen{
			redrawn: redrawn{out: a.stdout},
			page:    func() pipelines.Page { return pipelines.Page(pageOf(file)) },
		}
		defer screen.close()
		w.show = screen
	}
	note := func(text string) {
		w.show.note(text)
		_ = w.draw(time.Now()) // the next one reports the error
	}
	err := followStream(ctx, note, func(ctx context.Context, state *streamState) error {
		return w.follow(ctx, api, id, state)
	})
	return w.last, err
}

type pipelineWatch struct {
	show pipelineView
	// last is the newest version.
	last *runnersv1.Pipeline
}

func (w *pipelineWatch) draw(now time.Time) error {
	if w.last == nil {
		return nil
	}
	return w.show.draw(w.last, now)
}

// follow shows one stream of the server until its end.
func (w *pipelineWatch) follow(ctx context.Context, api *client.Runners, id int64, state *streamState) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.Pipelines.WatchPipeline(ctx, connect.NewRequest(&runnersv1.WatchPipelineRequest{Id: id}))
	if err != nil {
		return err
	}
	state.answer(stream.ResponseHeader())
	versions, ended := make(chan *runnersv1.Pipeline), make(chan error, 1)
	go func() {
		defer close(versions)
		for stream.Receive() {
			versions <- stream.Msg().GetPipeline()
		}
		ended <- stream.Err()
		_ = stream.Close() // read to its end
	}()
	// The reader stops with the stream. Its last messages are dropped.
	defer func() {
		cancel()
		for range versions {
		}
	}()
	ticker := time.NewTicker(redraw)
	defer ticker.Stop()
	for {
		select {
		case p, open := <-versions:
			if !open {
				return cmp.Or(<-ended, errStreamEnded) //nolint:wrapcheck // a fault
			}
			state.receive()
			before := w.last
			w.last = p
			if err := w.show.take(before, p); err != nil {
				return err
			}
			if pipelines.Ended(p) {
				return w.draw(time.Now())
			}
		case now := <-ticker.C:
			if err := w.draw(now); err != nil {
				return err
			}
		}
	}
}

// pipelineMessages prints one message per line.
type pipelineMessages struct{ *app }

func (m pipelineMessages) take(before, after *runnersv1.Pipeline) error {
	if proto.Equal(before, after) {
		return nil
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(after)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return m.write(string(raw) + "\n")
}

func (pipelineMessages) draw(*runnersv1.Pipeline, time.Time) error { return nil }

func (m pipelineMessages) note(text string) { m.noteStream(text) }

// pipelineLines prints one line per change.
type pipelineLines struct{ *app }

func (l pipelineLines) take(before, after *runnersv1.Pipeline) error {
	for _, line := range pipelines.Changes(before, after) {
		if err := l.write(time.Now().Format("15:04:05.000") + "  " + line + "\n"); err != nil {
			return err
		}
	}
	return nil
}

func (pipelineLines) draw(*runnersv1.Pipeline, time.Time) error { return nil }

func (l pipelineLines) note(text string) { l.noteStream(text) }

// pipelineScreen is the live view: it redraws the last lines of the terminal.
type pipelineScreen struct {
	redrawn

	page func() pipelines.Page
}

func (s *pipelineScreen) take(_, after *runnersv1.Pipeline) error { return s.draw(after, time.Now()) }

func (s *pipelineScreen) draw(p *runnersv1.Pipeline, now time.Time) error {
	return s.redrawn.draw(pipelines.Lines(p, s.page(), now))
}

// note scrolls above the pipeline.
func (s *pipelineScreen) note(text string) { s.scroll(text) }
