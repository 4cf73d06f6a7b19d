package runnerclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// maxPatch is the size of the largest part of a trace that is sent at once.
const maxPatch = 1 << 20

// Causes of the end of a script.
var (
	errCanceling = errors.New("the server cancels the job")
	errAborted   = errors.New("the server has ended the job")
	errTimeout   = errors.New("the job took longer than its timeout")
)

// Script is what happens inside of a job.
type Script struct {
	// Lines of the trace.
	Lines []string
	// Wait ends the script when it is closed, after the lines. Nil ends it at once.
	Wait <-chan struct{}
	// Rest are the lines after Wait.
	Rest []string
	// ExitCode of the script.
	ExitCode int
	// After are the lines of after_script. It runs if the job has that step, also after a cancellation.
	After []string
	// Files of the artifacts. Each artifact of the job has all of them.
	Files map[string][]byte
}

// Result of an executed job.
type Result struct {
	// State, FailureReason and ExitCode that were reported.
	State, FailureReason string
	ExitCode             int
	// Trace as it was sent.
	Trace []byte
	// Dependencies are the downloaded artifacts by the name of their job.
	Dependencies map[string][]byte
	// Canceling: the server asked to cancel. Aborted: it ended the job.
	Canceling, Aborted bool
	// Status of the last report.
	Status int
	// JobStatus is the last header Job-Status.
	JobStatus string
	// Resumed counts the answers 416, Resent the answers 412, Failures the requests without a usable answer.
	Resumed, Resent, Failures int
}

// execution is a job that is executed.
type execution struct {
	client *Client
	job    *Job
	trace  *trace
	// cancelScript ends the script, abort also everything after it.
	cancelScript, abort context.CancelCauseFunc

	// Owned by the sender of the trace, and after its end by Execute.
	sent     int64
	interval time.Duration
	result   Result
}

// Execute executes the job and reports its end. It tries again until the server has answered or ctx ends.
func (c *Client) Execute(ctx context.Context, job *Job, script Script) (Result, error) {
	alive, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	running, cancelScript := context.WithCancelCause(alive)
	defer cancelScript(nil)
	if job.RunnerInfo.Timeout > 0 {
		timeout := time.Duration(job.RunnerInfo.Timeout) * time.Second
		var stop context.CancelFunc
		running, stop = context.WithTimeoutCause(running, timeout, errTimeout)
		defer stop()
	}
	e := &execution{
		client: c, job: job, trace: newTrace(job.Variables, c.cfg.Unmasked), cancelScript: cancelScript, abort: abort,
		interval: defaultInterval,
	}
	e.trace.line("Running with runnerclient")

	stopSender := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() { e.send(alive, stopSender) })
	dependencies, reason, exitCode := e.run(alive, running, script)
	close(stopSender)
	sender.Wait()
	if ctx.Err() != nil {
		return e.result, context.Cause(ctx) //nolint:wrapcheck // the caller's own
	}
	e.result.Dependencies = dependencies
	e.result.State, e.result.FailureReason, e.result.ExitCode = "success", "", exitCode
	if reason != "" {
		e.result.State, e.result.FailureReason = "failed", e.supported(reason)
	}
	err := e.finish(ctx)
	e.result.Trace = e.trace.all()
	return e.result, err
}

// run returns the reason of a failure, or none.
func (e *execution) run(alive, running context.Context, script Script) (
	dependencies map[string][]byte, reason string, exitCode int,
) {
	defer e.trace.end()
	dependencies, err := e.download(running)
	if err != nil {
		e.trace.line("ERROR: ", err.Error())
		reason, exitCode = "script_failure", 1
	} else {
		reason, exitCode = e.script(running, script)
	}
	if alive.Err() == nil && slices.ContainsFunc(e.job.Steps, func(s Step) bool { return s.Name == "after_script" }) {
		for _, line := range script.After {
			e.trace.line(line)
		}
	}
	if alive.Err() != nil {
		return dependencies, reason, exitCode
	}
	if err := e.upload(alive, reason == "", script.Files); err != nil && reason == "" {
		e.trace.line("ERROR: ", err.Error())
		reason, exitCode = "script_failure", 1
	}
	if reason == "" {
		e.trace.line("Job succeeded")
	} else {
		e.trace.line("ERROR: Job failed: ", reason)
	}
	return dependencies, reason, exitCode
}

func (e *execution) script(ctx context.Context, script Script) (reason string, exitCode int) {
	for _, line := range script.Lines {
		e.trace.line(line)
	}
	if script.Wait != nil {
		select {
		case <-script.Wait:
		case <-ctx.Done():
		}
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errTimeout):
		return "job_execution_timeout", 0
	case cause != nil:
		return "unknown_failure", 0 // as runners report a canceled job
	}
	for _, line := range script.Rest {
		e.trace.line(line)
	}
	if script.ExitCode != 0 {
		e.trace.line("exit status ", strconv.Itoa(script.ExitCode))
		return "script_failure", script.ExitCode
	}
	return "", 0
}

func (e *execution) download(ctx context.Context) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, dependency := range e.job.Dependencies {
		if dependency.ArtifactsFile.Filename == "" {
			continue
		}
		e.trace.line("Downloading artifacts for ", dependency.Name)
		body, err := e.client.DownloadArtifact(ctx, dependency)
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(body)
		if err := errors.Join(err, body.Close()); err != nil {
			return nil, fmt.Errorf("download of %s: %w", dependency.Name, err)
		}
		all[dependency.Name] = content
	}
	return all, nil
}

func (e *execution) upload(ctx context.Context, success bool, files map[string][]byte) error {
	if files == nil {
		return nil
	}
	for _, artifact := range e.job.Artifacts {
		if on := artifact.When; on != "always" && (on == "on_failure") == success {
			continue
		}
		archive, err := Zip(files)
		if err != nil {
			return err
		}
		name := artifact.Name
		if name == "" {
			name = "artifacts"
		}
		e.trace.line("Uploading artifacts")
		if err := e.client.UploadArtifact(ctx, e.job, Upload{
			Filename: name + ".zip", Type: artifact.Type, Format: artifact.Format, ExpireIn: artifact.ExpireIn,
			Open: func() io.Reader { return bytes.NewReader(archive) },
		}); err != nil {
			return err
		}
	}
	return nil
}

// send sends the trace while the job runs. A job without new output is reported as running.
func (e *execution) send(ctx context.Context, stop <-chan struct{}) {
	if e.client.cfg.Version == Since1711 {
		e.touch(ctx)
	}
	for {
		timer := time.NewTimer(e.client.limited(e.interval))
		select {
		case <-timer.C:
		case <-stop:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if part := e.trace.from(e.sent, maxPatch); len(part) > 0 {
			e.patch(ctx, part)
		} else {
			e.touch(ctx)
		}
	}
}

func (e *execution) touch(ctx context.Context) {
	a, err := e.client.UpdateJob(ctx, e.job, Update{State: "running"})
	e.note(a, err)
}

// patch sends a part of the trace. It returns false if the server takes no more of it.
func (e *execution) patch(ctx context.Context, part []byte) (more bool) {
	a, err := e.client.PatchTrace(ctx, e.job, e.sent, part)
	e.note(a, err)
	switch {
	case err != nil:
		return true
	case a.Status == http.StatusForbidden:
		return false
	case a.Status == http.StatusRequestedRangeNotSatisfiable:
		e.result.Resumed++
	}
	e.sent = a.Stored
	return true
}

// note acts on the answer of a request about the job.
func (e *execution) note(a JobAnswer, err error) {
	if err != nil {
		e.result.Failures++
		return
	}
	e.interval, e.result.JobStatus = a.Interval, a.JobStatus
	switch {
	case a.aborted():
		e.result.Aborted = true
		e.abort(errAborted)
	case a.canceling():
		e.result.Canceling = true
		e.cancelScript(errCanceling)
	}
}

// finish sends the rest of the trace and reports the end, until the server has it.
func (e *execution) finish(ctx context.Context) error {
	update := Update{
		State: e.result.State, FailureReason: e.result.FailureReason, ExitCode: e.result.ExitCode, Trace: e.trace.all(),
	}
	for {
		if err := e.sendRest(ctx); err != nil {
			return err
		}
		a, err := e.client.UpdateJob(ctx, e.job, update)
		if err == nil {
			e.result.Status, e.result.JobStatus, e.interval = a.Status, a.JobStatus, a.Interval
			switch a.Status {
			case http.StatusOK:
				return nil
			case http.StatusForbidden, http.StatusNotFound:
				e.result.Aborted = true
				return nil
			case http.StatusPreconditionFailed:
				e.result.Resent++
				e.sent = 0
			}
		} else {
			e.result.Failures++
		}
		if err := e.client.pause(ctx, e.interval); err != nil {
			return err
		}
	}
}

// sendRest sends the rest of the trace, unless the server refuses it.
func (e *execution) sendRest(ctx context.Context) error {
	for {
		before := e.sent
		part := e.trace.from(e.sent, maxPatch)
		if len(part) == 0 || !e.patch(ctx, part) {
			return nil
		}
		if e.sent != before+int64(len(part)) {
			if err := e.client.pause(ctx, e.interval); err != nil {
				return err
			}
		}
	}
}

// supported returns the reason if the server knows it.
func (e *execution) supported(reason string) string {
	if slices.Contains(e.job.Features.FailureReasons, reason) {
		return reason
	}
	return "unknown_failure"
}
