package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/pipelines"
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
	f.BoolVar(&flags.raw, "raw", false, "write the output with all control sequences and the markers of sections")
	f.BoolVar(&flags.exitStatus, "exit-status", false, "with --follow: exit status 8 if the job does not succeed")
	return c
}

func (a *app) showTrace(ctx context.Context, api *client.Runners, job int64, flags traceFlags) (err error) {
	shown := &traceOutput{write: a.stdout.Write, until: math.MaxInt64}
	if !flags.follow {
		response, err := api.Jobs.GetJob(ctx, connect.NewRequest(&runnersv1.GetJobRequest{Id: job}))
		if err != nil {
			return err
		}
		if shown.until = response.Msg.GetJob().GetTraceSize(); shown.until == 0 {
			return a.note("job %d has no output yet; it is %s", job, pipelines.JobState(response.Msg.GetJob()))
		}
	}
	if !flags.raw {
		_, onTerminal := a.terminal()
		w := trace.NewWriter(a.stdout, trace.Options{
			Terminal: onTerminal, Colour: onTerminal && os.Getenv("NO_COLOR") == "", Full: flags.full,
		})
		shown.write = w.Write
		defer func() { err = errors.Join(err, w.Close()) }()
	}
	end, err := a.followTrace(ctx, api, job, shown)
	if err != nil || ctx.Err() != nil || !flags.exitStatus || end == "success" {
		return err
	}
	return fault.New(errcode.FailedPrecondition, "job %d is %s: see `lockstep jobs get %d`", job, trace.Line(end), job)
}

// followTrace shows the output of a job until its end, and returns its state. It opens a lost stream again.
func (a *app) followTrace(
	ctx context.Context, api *client.Runners, job int64, shown *traceOutput,
) (end string, err error) {
	var offset int64
	err = followStream(ctx, a.noteStream, func(ctx context.Context, state *streamState) error {
		shown.state = state
		last, err := api.FollowTrace(ctx, job, &offset, shown)
		if errors.Is(err, errDone) {
			return nil
		}
		end = last
		return err
	})
	return end, err
}

// traceOutput shows the parts of a trace up to an offset.
type traceOutput struct {
	write func([]byte) (int, error)
	until int64
	state *streamState
}

// Answer is called when the server has answered.
func (o *traceOutput) Answer(header http.Header) { o.state.answer(header) }

// Text shows the next part of the output.
func (o *traceOutput) Text(text string, end int64) error {
	o.state.receive()
	if _, err := o.write([]byte(text)); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if end >= o.until {
		return errDone
	}
	return nil
}
