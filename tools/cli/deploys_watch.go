package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/tools/board"
	"lockstep.internal/tools/client"
)

const (
	// redraw is the interval of the live view. It shows ages, so it changes without events.
	redraw = 250 * time.Millisecond
	// endedAfterRestart is the number of ended rollouts that a restarted watch requests.
	endedAfterRestart = 500
)

func (a *app) deploysWatch() *cobra.Command {
	var filter rolloutFilter
	var ended int32
	var plain bool
	c := &cobra.Command{
		Use:   "watch [WORKLOAD]",
		Short: "Show running rollouts until Ctrl-C",
		Args:  atMost("WORKLOAD"), ValidArgsFunction: a.completeWorkloads,
		Long: `Show running rollouts of all workloads, or of one. A bar shows the pods (█ new and available, ▓ new, ▒
old, · missing), followed by the duration, what the rollout waits for and why it is stuck. Ended rollouts, and changes
of the number of pods, scroll above. With --plain, or without a terminal, print one line per fact; with -o json, one
message per line.`,
		Example: "  lockstep deploys watch\n  lockstep deploys watch shop/web\n  lockstep deploys watch " +
			"--plain --group pr-42",
		RunE: func(c *cobra.Command, args []string) error {
			wanted, err := filter.read(args, time.Now())
			if err != nil {
				return err
			}
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			if err := filter.resolve(c.Context(), a); err != nil {
				return err
			}
			var show rolloutView = &factLines{app: a}
			switch file, onTerminal := a.terminal(); {
			case a.output != outputTable:
				show = messageLines{a}
			case onTerminal && !plain:
				screen := newScreen(a.stdout, func() board.Page { return pageOf(file) })
				defer screen.close()
				show = screen
			}
			request := &deploysv1.WatchRolloutsRequest{Filter: wanted, Ended: ended, Scaling: true}
			begun, err := watchBegun(c.Context(), api, wanted, len(args) > 0)
			if err != nil {
				return err
			}
			return a.watchRollouts(c.Context(), api, request, show, begun)
		},
	}
	filter.flags(a, c, false)
	c.Flags().Int32Var(&ended, "ended", 0, "show this number of ended rollouts first")
	c.Flags().BoolVar(&plain, "plain", false, "print one line per fact on a terminal, too")
	return c
}

// watchBegun returns the note at the beginning of a watch. A workload that is named may come later.
func watchBegun(
	ctx context.Context, api *client.Deploys, filter *deploysv1.RolloutFilter, named bool,
) (string, error) {
	const begun = "watching rollouts until Ctrl-C"
	if !named {
		return begun, nil
	}
	workload := &deploysv1.RolloutFilter{
		Namespace: filter.GetNamespace(), Kind: filter.GetKind(), Name: filter.GetName(),
	}
	known, err := listRollouts(ctx, api, workload, 1)
	if err != nil || len(known.GetRollouts()) > 0 {
		return begun, err
	}
	return fmt.Sprintf("%s; no rollout of %s/%s/%s is known yet", begun, filter.GetNamespace(), filter.GetKind(),
		filter.GetName()), nil
}

// pageOf returns the size of a terminal.
func pageOf(file *os.File) board.Page {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	return board.Page{Width: width, Height: height - 1, Colour: os.Getenv("NO_COLOR") == ""}
}

// rolloutView shows the messages of a watch.
type rolloutView interface {
	// take handles a message. before is the last one about the same rollout, nil for none.
	take(before *deploysv1.Rollout, message *deploysv1.WatchRolloutsResponse) error
	// scaled handles a change of the number of pods.
	scaled(message *deploysv1.WatchRolloutsResponse) error
	// draw is called at an interval with the running rollouts.
	draw(running []*deploysv1.Rollout, now time.Time) error
	// note shows what happens to the stream.
	note(text string)
}

// watchRollouts shows rollouts until ctx is done, after the note begun. It opens a lost stream again, and then shows
// the rollouts that ended meanwhile, too.
func (a *app) watchRollouts(
	ctx context.Context, api *client.Deploys, request *deploysv1.WatchRolloutsRequest, show rolloutView, begun string,
) error {
	w := &rolloutWatch{show: show, began: time.Now(), begun: begun}
	note := func(text string) {
		show.note(text)
		_ = show.draw(w.board.Running(), time.Now()) // the next one reports the error
	}
	return followStream(ctx, note, func(ctx context.Context, state *streamState) error {
		err := w.follow(ctx, api, request, state)
		request = &deploysv1.WatchRolloutsRequest{
			Filter: request.GetFilter(), Ended: endedAfterRestart, Scaling: true,
		}
		return err
	})
}

type rolloutWatch struct {
	show  rolloutView
	board board.Board
	began time.Time
	// begun is the note at the beginning.
	begun string
	// restarted: the stream was opened before.
	restarted bool
}

// follow shows one stream of the server until its end.
func (w *rolloutWatch) follow(
	ctx context.Context, api *client.Deploys, request *deploysv1.WatchRolloutsRequest, state *streamState,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.Rollouts.WatchRollouts(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	state.answer(stream.ResponseHeader())
	if state.answered && w.begun != "" {
		w.show.note(w.begun)
		w.begun = ""
	}
	answered := time.Now()
	defer func() { w.restarted = true }()
	messages := make(chan *deploysv1.WatchRolloutsResponse)
	ended := make(chan error, 1)
	go func() {
		defer close(messages)
		for stream.Receive() {
			messages <- stream.Msg()
		}
		ended <- stream.Err()
		_ = stream.Close() // read to its end
	}()
	// The reader stops with the stream. Its last messages are dropped.
	defer func() {
		cancel()
		for range messages {
		}
	}()
	ticker := time.NewTicker(redraw)
	defer ticker.Stop()
	for {
		var err error
		select {
		case message, open := <-messages:
			if !open {
				return cmp.Or(<-ended, errStreamEnded) //nolint:wrapcheck // a fault
			}
			state.receive()
			err = w.take(message)
		case now := <-ticker.C:
			if state.answered && now.Sub(answered) > streamRetry {
				state.receive() // there may be no rollouts
			}
			err = w.show.draw(w.board.Running(), now)
		}
		if err != nil {
			return err
		}
	}
}

func (w *rolloutWatch) take(message *deploysv1.WatchRolloutsResponse) error {
	if message.GetScaling() != nil {
		return w.show.scaled(message)
	}
	r := message.GetRollout()
	if w.restarted && !board.Running(r) && !w.board.Knows(r.GetId()) && r.GetStartedAt().AsTime().Before(w.began) {
		return nil // ended before the watch
	}
	before, changed := w.board.Take(r)
	if !changed {
		return nil
	}
	return w.show.take(before, message)
}

// messageLines prints one message per line.
type messageLines struct{ *app }

func (m messageLines) take(_ *deploysv1.Rollout, message *deploysv1.WatchRolloutsResponse) error {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return m.write(string(raw) + "\n")
}

func (m messageLines) scaled(message *deploysv1.WatchRolloutsResponse) error {
	return m.take(nil, message)
}

func (messageLines) draw([]*deploysv1.Rollout, time.Time) error { return nil }

func (m messageLines) note(text string) { m.noteStream(text) }

// factLines prints one fact per line.
type factLines struct{ *app }

func (f *factLines) take(before *deploysv1.Rollout, message *deploysv1.WatchRolloutsResponse) error {
	r := message.GetRollout()
	at := r.GetUpdatedAt()
	if at == nil {
		at = r.GetStartedAt()
	}
	for _, fact := range board.Changes(before, r) {
		line := fmt.Sprintf("%s  %s  r%d  %s\n", at.AsTime().Local().Format("15:04:05.000"), board.Name(r), r.GetRevision(),
			fact)
		if err := f.write(line); err != nil {
			return err
		}
	}
	return nil
}

func (f *factLines) scaled(message *deploysv1.WatchRolloutsResponse) error {
	return f.write(scalingLine(message.GetScaling()) + "\n")
}

// scalingLine returns the time and what is scaled.
func scalingLine(s *deploysv1.Scaling) string {
	return s.GetObservedAt().AsTime().Local().Format("15:04:05.000") + "  " + board.Scaling(s)
}

func (*factLines) draw([]*deploysv1.Rollout, time.Time) error { return nil }

func (f *factLines) note(text string) { f.noteStream(text) }

// screen is the live view: it redraws the last lines of the terminal. Ended rollouts scroll above them.
type screen struct {
	redrawn

	page func() board.Page
}

func newScreen(out io.Writer, page func() board.Page) *screen {
	return &screen{redrawn: redrawn{out: out}, page: page}
}

func (s *screen) take(before *deploysv1.Rollout, message *deploysv1.WatchRolloutsResponse) error {
	if r := message.GetRollout(); !board.Running(r) && (before == nil || board.Running(before)) {
		s.scroll(board.Ended(r, s.page()))
	}
	return nil
}

// note scrolls above the running rollouts.
func (s *screen) note(text string) { s.scroll(text) }

func (s *screen) scaled(message *deploysv1.WatchRolloutsResponse) error {
	s.scroll(scalingLine(message.GetScaling()))
	return nil
}

func (s *screen) draw(running []*deploysv1.Rollout, now time.Time) error {
	return s.redrawn.draw(board.Lines(running, now, s.page()))
}
