package runnerclient

import (
	"context"
	"fmt"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// JobAnswer answers a request about a running job.
type JobAnswer struct {
	Status int
	// JobStatus is the header Job-Status.
	JobStatus string
	// Stored is the size of the trace that the server has; -1 if it does not say.
	Stored int64
	// Interval until the next request. Defaults to 3 s.
	Interval time.Duration
}

// PatchTrace sends a part of the trace that begins at offset. The statuses 202, 416 and 403 are answers; others are
// errors, among them 404: a runner ignores it and would send for ever.
func (c *Client) PatchTrace(ctx context.Context, job *Job, offset int64, part []byte) (JobAnswer, error) {
	header := http.Header{
		"Job-Token":     {job.Token},
		"Content-Type":  {"text/plain"},
		"Content-Range": {fmt.Sprintf("%d-%d", offset, offset+int64(len(part))-1)},
	}
	path := fmt.Sprintf("/jobs/%d/trace?debug_trace=false", job.ID)
	a, err := c.sendRaw(ctx, http.MethodPatch, path, header, part)
	if err != nil {
		return JobAnswer{}, err
	}
	switch a.status {
	case http.StatusAccepted, http.StatusRequestedRangeNotSatisfiable, http.StatusForbidden:
	default:
		return JobAnswer{}, a.failure()
	}
	result, err := a.job()
	if err == nil && a.status != http.StatusForbidden && result.Stored < 0 {
		err = fmt.Errorf("%s: the answer %d has no valid header Range", a.request, a.status)
	}
	return result, err
}

// UpdateJob reports the state. The statuses 200, 202, 412, 403 and 404 are answers; others are errors.
func (c *Client) UpdateJob(ctx context.Context, job *Job, update Update) (JobAnswer, error) {
	body := map[string]any{"info": c.cfg.Info, "token": job.Token, "state": update.State}
	if update.State != "running" {
		sum := fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE(update.Trace))
		body["checksum"] = sum
		body["output"] = map[string]any{"checksum": sum, "bytesize": len(update.Trace)}
	}
	if update.FailureReason != "" {
		body["failure_reason"] = update.FailureReason
	}
	if update.ExitCode != 0 {
		body["exit_code"] = update.ExitCode
	}
	a, err := c.send(ctx, http.MethodPut, fmt.Sprintf("/jobs/%d", job.ID), c.tokenHeader("Job-Token", job.Token), body)
	if err != nil {
		return JobAnswer{}, err
	}
	switch a.status {
	case http.StatusOK, http.StatusAccepted, http.StatusPreconditionFailed, http.StatusForbidden, http.StatusNotFound:
		return a.job()
	}
	return JobAnswer{}, a.failure()
}

// job reads the headers of an answer about a job.
func (a answer) job() (JobAnswer, error) {
	result := JobAnswer{
		Status: a.status, JobStatus: a.header.Get("Job-Status"), Stored: -1, Interval: defaultInterval,
	}
	if value := a.header.Get("Range"); value != "" {
		size, found := strings.CutPrefix(value, "0-")
		stored, err := strconv.ParseInt(size, 10, 64)
		if !found || err != nil || stored < 0 {
			return result, fmt.Errorf("%s: invalid header Range %q", a.request, value)
		}
		result.Stored = stored
	}
	if value := a.header.Get("X-Gitlab-Trace-Update-Interval"); value != "" {
		seconds, err := strconv.Atoi(value)
		if err != nil || seconds <= 0 {
			return result, fmt.Errorf("%s: invalid header X-GitLab-Trace-Update-Interval %q", a.request, value)
		}
		result.Interval = time.Duration(seconds) * time.Second
	}
	return result, nil
}

// canceling reports whether the script must end and after_script run.
func (a JobAnswer) canceling() bool { return a.JobStatus == "canceling" }

// aborted reports whether the job is over for the server.
func (a JobAnswer) aborted() bool {
	return a.Status == http.StatusForbidden || a.Status == http.StatusNotFound ||
		a.JobStatus == "canceled" || a.JobStatus == "failed"
}
