package cli

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/trace"
)

// traceFlags choose how a trace is shown.
type traceFlags struct{ follow, full, raw, exitStatus bool }

func (a *app) jobTrace() *cobra.Command {
	var flags traceFlags
	c := a.jobCommand("trace", "Show the output of a job", `Show the output of a job so far, or with --follow until the job
has ended. A terminal shows the colours of the output; the sections of the runner have a heading and their duration, and
a collapsed section is one line. Otherwise, the output is text without control sequences. NO_COLOR turns colours off.
The output cannot control the terminal: all other control sequences are removed.`,
		func(ctx context.Context, api *client.Runners, id int64) error {
			switch _, onTerminal := a.terminal(); {
			case flags.exitStatus && !flags.follow:
				return fault.New(errcode.InvalidArgument, "--exit-status needs --follow")
			case flags.raw && onTerminal:
				return fault.New(errcode.InvalidArgument,
					"--raw needs an output that is not a terminal, because a trace can control one")
			}
			return a.showTrace(ctx, api, id, flags)
		})
	c.Example = "  lockstep jobs trace 7301\n  lockstep jobs trace compile --pipeline 1042 --follow --exit-status"
	f := c.Flags()
	f.BoolVarP(&flags.follow, "follow", "f", false, "show new output until the job has ended, or until Ctrl-C")
	f.BoolVar(&flags.full, "full", false, "show the lines of collapsed sections, too")
	f.BoolVar(&flags.raw, "raw", false, "write the output as it is stored, with all control sequences")
	f.BoolVar(&flags.exitStatus, "exit-status", false, "with --follow: exit status 8 if the job does not succeed")
	return c
}

func (a *app) showTrace(ctx context.Context, api *client.Runners, job int64, flags traceFlags) (err error) {
	shown := &traceOutput{write: func(text []byte) (int, error) { return a.stdout.Write(text) }}
	if !flags.raw {
		_, onTerminal := a.terminal()
		w := trace.NewWriter(a.stdout, trace.Options{
			Terminal: onTerminal, Colour: onTerminal && os.Getenv("NO_COLOR") == "", Full: flags.full,
		})
		shown.write = w.Write
		defer func() { err = errors.Join(err, w.Close()) }()
	}
	if !flags.follow {
		return api.Trace(ctx, job, shown)
	}
	state, err := a.followTrace(ctx, api, job, shown)
	if err != nil || ctx.Err() != nil || !flags.exitStatus || state == "success" {
		return err
	}
	return fault.New(errcode.FailedPrecondition, "job %d is %s: see `lockstep jobs get %d`", job, trace.Line(state), job)
}

// followTrace shows the output of a job until its end, and returns its state. It opens a lost stream again.
func (a *app) followTrace(
	ctx context.Context, api *client.Runners, job int64, shown *traceOutput,
) (end string, err error) {
	var position client.TracePosition
	err = followStream(ctx, a.noteStream, func(ctx context.Context, state *streamState) error {
		shown.state = state
		last, err := api.FollowTrace(ctx, job, &position, shown)
		end = last
		return err
	})
	return strings.ToLower(end), err
}

// traceOutput shows the parts of a trace.
type traceOutput struct {
	write func([]byte) (int, error)
	state *streamState
}

func (o *traceOutput) Write(text []byte) (int, error) { return o.write(text) }

// Answer is called when the server has answered.
func (o *traceOutput) Answer(header http.Header) { o.state.answer(header) }

// Text shows the next part of the output.
func (o *traceOutput) Text(text string) error {
	o.state.receive()
	_, err := o.write([]byte(text))
	return err
}
