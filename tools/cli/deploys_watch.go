package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/tools/board"
	"lockstep.internal/tools/client"
)

const (
	// redraw is how often the live view is drawn: ages go on where nothing happens.
	redraw = 250 * time.Millisecond
	// watchAgain is how long a watch that broke off waits before it begins again.
	watchAgain = time.Second
	// missed is how many rollouts that ended meanwhile are asked for then.
	missed = 500
)

func (a *app) deploysWatch() *cobra.Command {
	var filter rolloutFilter
	var ended int32
	var plain bool
	c := &cobra.Command{
		Use: "watch [WORKLOAD]", Short: "Show rollouts as they go, until Ctrl-C", Args: cobra.MaximumNArgs(1),
		Long: `Show rollouts as they go, of all workloads or of one: each as a bar of its pods (█ new and available, ▓ new, ▒ old, · not there), how long it has taken,
what it waits for and why it is stuck. Those that have ended scroll above. Where the output is no terminal, or with --plain, it prints one line a fact; with
-o json one message a line.`,
		Example: "  lockstep deploys watch\n  lockstep deploys watch shop/web\n  lockstep deploys watch --plain --group pr-42",
		RunE: func(c *cobra.Command, args []string) error {
			wanted, err := filter.read(args, time.Now())
			if err != nil {
				return err
			}
			api, err := a.deploysAPI()
			if err != nil {
				return err
			}
			var show rolloutView = &factLines{app: a}
			switch file, onTerminal := a.stdout.(*os.File); {
			case a.output != outputTable:
				show = messageLines{a}
			case onTerminal && !plain && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb":
				screen := newScreen(a.stdout, func() board.Page { return pageOf(file) })
				defer screen.leave()
				show = screen
			}
			return a.watchRollouts(c.Context(), api, &deploysv1.WatchRolloutsRequest{Filter: wanted, Ended: ended}, show)
		},
	}
	filter.flags(c, false)
	c.Flags().Int32Var(&ended, "ended", 0, "at first show so many rollouts that have ended")
	c.Flags().BoolVar(&plain, "plain", false, "one line a fact on a terminal too")
	return c
}

// pageOf is the size of a terminal.
func pageOf(file *os.File) board.Page {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	return board.Page{Width: width, Height: height - 1, Colour: os.Getenv("NO_COLOR") == ""}
}

// rolloutView shows what a watch tells.
type rolloutView interface {
	// take takes in a message; before is the one before about the same rollout, nil for none.
	take(before *deploysv1.Rollout, seen *deploysv1.WatchRolloutsResponse) error
	// draw is called now and then, with what runs.
	draw(running []*deploysv1.Rollout, now time.Time) error
}

// watchRollouts shows rollouts until the user leaves. A watch that the server ends is begun again: what ended meanwhile is shown, too.
func (a *app) watchRollouts(ctx context.Context, api *client.Deploys, request *deploysv1.WatchRolloutsRequest, show rolloutView) error {
	w := &rolloutWatch{show: show, began: time.Now()}
	for first := true; ; first = false {
		err := w.follow(ctx, api, request)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user has left, which is how it ends
		case w.failed != nil:
			return w.failed
		case err != nil && (first && !w.heard || !again(err)):
			return fault.From(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchAgain):
		}
		request = &deploysv1.WatchRolloutsRequest{Filter: request.GetFilter(), Ended: missed}
		w.later = true
	}
}

// again says whether a watch that ended so may be begun again.
func again(err error) bool {
	return fault.Is(err, errcode.Unavailable) || fault.Is(err, errcode.Unauthenticated) || fault.Is(err, errcode.DeadlineExceeded)
}

type rolloutWatch struct {
	show  rolloutView
	board board.Board
	began time.Time
	// heard says that the server has answered, later that the watch was begun again; failed is that nothing can be shown any more.
	heard, later bool
	failed       error
}

// follow shows one stream of the server to its end.
func (w *rolloutWatch) follow(ctx context.Context, api *client.Deploys, request *deploysv1.WatchRolloutsRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.Rollouts.WatchRollouts(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	w.heard = true
	messages := make(chan *deploysv1.WatchRolloutsResponse)
	ended := make(chan error, 1)
	go func() {
		defer close(messages)
		for stream.Receive() {
			messages <- stream.Msg()
		}
		ended <- stream.Err()
		_ = stream.Close() // it is over
	}()
	// The reader ends with the stream; what it still has is let go.
	defer func() {
		cancel()
		for range messages { // nobody wants them any more
		}
	}()
	again := time.NewTicker(redraw)
	defer again.Stop()
	for {
		select {
		case seen, open := <-messages:
			if !open {
				return <-ended
			}
			w.failed = w.take(seen)
		case now := <-again.C:
			w.failed = w.show.draw(w.board.Running(), now)
		}
		if w.failed != nil {
			return w.failed
		}
	}
}

func (w *rolloutWatch) take(seen *deploysv1.WatchRolloutsResponse) error {
	r := seen.GetRollout()
	if w.later && !board.Running(r) && !w.board.Knows(r.GetId()) && r.GetStartedAt().AsTime().Before(w.began) {
		return nil // it was over before
	}
	before, news := w.board.Take(r)
	if !news {
		return nil
	}
	return w.show.take(before, seen)
}

// messageLines are for programs.
type messageLines struct{ *app }

func (m messageLines) take(_ *deploysv1.Rollout, seen *deploysv1.WatchRolloutsResponse) error {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(seen)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return m.write(string(raw) + "\n")
}

func (messageLines) draw([]*deploysv1.Rollout, time.Time) error { return nil }

// factLines are for logs and pipes.
type factLines struct{ *app }

func (f *factLines) take(before *deploysv1.Rollout, seen *deploysv1.WatchRolloutsResponse) error {
	r := seen.GetRollout()
	at := r.GetUpdatedAt()
	if at == nil {
		at = r.GetStartedAt()
	}
	for _, fact := range board.Changes(before, r) {
		line := fmt.Sprintf("%s  %s  r%d  %s\n", at.AsTime().Local().Format("15:04:05.000"), board.Name(r), r.GetRevision(), fact)
		if err := f.write(line); err != nil {
			return err
		}
	}
	return nil
}

func (*factLines) draw([]*deploysv1.Rollout, time.Time) error { return nil }

// screen is the live view: lines at the end of the terminal that are drawn anew, above them what has ended.
type screen struct {
	out  io.Writer
	page func() board.Page
	// drawn is how many lines are to be drawn over, last what they are.
	drawn int
	last  string
	above []string
}

const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearBelow = "\x1b[J"
)

func newScreen(out io.Writer, page func() board.Page) *screen { return &screen{out: out, page: page} }

func (s *screen) take(before *deploysv1.Rollout, seen *deploysv1.WatchRolloutsResponse) error {
	if r := seen.GetRollout(); !board.Running(r) && (before == nil || board.Running(before)) {
		s.above = append(s.above, board.Ended(r, s.page()))
	}
	return nil
}

func (s *screen) draw(running []*deploysv1.Rollout, now time.Time) error {
	lines := board.Lines(running, now, s.page())
	text := strings.Join(lines, "\n") + "\n"
	if text == s.last && len(s.above) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(hideCursor)
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", s.drawn)
	}
	b.WriteString(clearBelow)
	for _, line := range s.above {
		b.WriteString(line + "\n")
	}
	b.WriteString(text)
	s.above, s.drawn, s.last = nil, len(lines), text
	if _, err := io.WriteString(s.out, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// leave gives the terminal back as it was.
func (s *screen) leave() { _, _ = io.WriteString(s.out, showCursor) }
