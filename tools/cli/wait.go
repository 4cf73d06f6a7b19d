package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

const (
	defaultWaitTimeout = 10 * time.Minute
	// standsFor is how long a state from before the command must stand to be its result: the cluster may not have
	// reported the change yet.
	standsFor = 5 * time.Second
)

// waitFlags are the flags of a command that can wait for its result.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (f *waitFlags) flags(c *cobra.Command, result string) {
	c.Flags().BoolVar(&f.wait, "wait", false, "show the states until it is "+result+"; exit status 8 if it fails")
	durationFlag(c, &f.timeout, "timeout", defaultWaitTimeout,
		"with --wait: stop waiting after this time, exit status 14; 0 for never")
}

func (f *waitFlags) check(c *cobra.Command) error {
	switch {
	case f.timeout < 0:
		return fault.New(errcode.InvalidArgument, "--timeout %s must not be negative", f.timeout)
	case !f.wait && c.Flags().Changed("timeout"):
		return fault.New(errcode.InvalidArgument, "--timeout needs --wait")
	default:
		return nil
	}
}

// printChanged prints the workspace that a command has changed. With --wait it shows the states until the change has
// its result.
func (a *app) printChanged(
	ctx context.Context, api *client.API, f waitFlags, response proto.Message, w *statev1.Workspace,
) error {
	if !f.wait {
		return a.print(response, workspaceTable(a.names(ctx, api), w))
	}
	return a.wait(ctx, api, w, f.timeout)
}

// wait shows the states of a workspace until it has its desired state, or fails. timeout 0 means none.
func (a *app) wait(ctx context.Context, api *client.API, w *statev1.Workspace, timeout time.Duration) error {
	return a.waitFor(ctx, api, &waitResult{before: w, last: w, standsFor: standsFor}, timeout)
}

// errDone ends a wait whose result is success.
var errDone = errors.New("done")

func (a *app) waitFor(parent context.Context, api *client.API, result *waitResult, timeout time.Duration) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	if timeout > 0 {
		limit := time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
		defer limit.Stop()
	}
	var stands *time.Timer
	stop := func() {
		if stands != nil {
			stands.Stop()
		}
	}
	defer func() { stop() }()
	filter := &statev1.WorkspaceFilter{
		IncludeTerminated: true,
		Workspaces: []*statev1.WorkspaceReference{
			{Reference: &statev1.WorkspaceReference_Id{Id: result.before.GetId()}},
		},
	}
	err := a.watch(ctx, api, filter, func(message *statev1.WatchWorkspacesResponse) (bool, error) {
		stop()
		end, final := result.take(message.GetWorkspace())
		if final {
			return true, end
		}
		if end != nil {
			stands = time.AfterFunc(result.standsFor, func() { cancel(end) })
		}
		return false, nil
	})
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	switch {
	case errors.Is(err, errDone):
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return result.expired(timeout)
	default:
		return fault.From(err)
	}
}

// waitResult decides when a wait ends.
type waitResult struct {
	// before is the workspace as the command left it, last its newest state.
	before, last *statev1.Workspace
	standsFor    time.Duration
}

// take returns how the wait ends with a state, nil if it does not. If it is not final, the state may be older than the
// change of the command, and ends the wait only if it stands.
func (r *waitResult) take(w *statev1.Workspace) (end error, final bool) {
	r.last = w
	target := targetOf(r.before)
	applied := w.GetAppliedRevision() >= w.GetDesiredRevision()
	changed := w.GetActualState() != r.before.GetActualState() ||
		!proto.Equal(w.GetActualStateChangedAt(), r.before.GetActualStateChangedAt())
	switch state := w.GetActualState(); {
	case targetOf(w) != target:
		return fault.New(errcode.Conflict, "workspace %q has another desired state now: %s", w.GetName(), desired(w)), true
	case state == target && applied && w.GetDesiredState() != statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED:
		nothingToDo := r.before.GetActualState() == target && r.before.GetAppliedRevision() >= r.before.GetDesiredRevision()
		return errDone, changed || nothingToDo
	case state == statev1.ActualState_ACTUAL_STATE_ERROR,
		state == statev1.ActualState_ACTUAL_STATE_FAILED && applied:
		return fault.New(errcode.FailedPrecondition, "workspace %q is %s", w.GetName(), explained(w)), changed
	default:
		return nil, false
	}
}

func (r *waitResult) expired(timeout time.Duration) error {
	return fault.New(errcode.DeadlineExceeded, "workspace %q is not %s after %s, it is %s: see `lockstep ws watch %s`",
		r.last.GetName(), enumName(targetOf(r.before).String(), actualStatePrefix), timeout, explained(r.last),
		r.last.GetName())
}

// targetOf returns the actual state that a workspace must reach.
func targetOf(w *statev1.Workspace) statev1.ActualState {
	switch w.GetDesiredState() {
	case statev1.DesiredState_DESIRED_STATE_STOPPED:
		return statev1.ActualState_ACTUAL_STATE_STOPPED
	case statev1.DesiredState_DESIRED_STATE_TERMINATED:
		return statev1.ActualState_ACTUAL_STATE_TERMINATED
	case statev1.DesiredState_DESIRED_STATE_RUNNING, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED,
		statev1.DesiredState_DESIRED_STATE_UNSPECIFIED:
		return statev1.ActualState_ACTUAL_STATE_RUNNING
	default:
		return statev1.ActualState_ACTUAL_STATE_RUNNING
	}
}

// explained returns the actual state with its message and reason, and how old it is if the agent does not report.
func explained(w *statev1.Workspace) string {
	text := freshOrStale(w)
	if w.GetMessage() != "" {
		text += ": " + w.GetMessage()
	}
	if w.GetReason() != "" {
		text += " (" + w.GetReason() + ")"
	}
	return text
}
