package runnerreplay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// check returns why the runner would not have accepted the answer as it accepted the recorded one, or nil.
func (r *replay) check(e Exchange, job *runningJob, expected int64, got response) error {
	call := e.Method() + " " + e.Path()
	switch {
	case call == "POST /api/v4/runners/verify":
		return got.runner(http.StatusOK)
	case call == "POST /api/v4/runners":
		if r.target.RegistrationToken == "" {
			return got.oneOf(http.StatusGone)
		}
		return got.runner(http.StatusCreated)
	case call == "POST /api/v4/jobs/request":
		return r.checkRequest(e, got)
	case e.Method() == http.MethodPatch:
		return checkTrace(e, job, expected, got)
	case e.Method() == http.MethodPut:
		return checkUpdate(e, job, got)
	case e.Files != nil:
		return got.into(&map[string]any{}, http.StatusCreated)
	}
	if err := got.oneOf(http.StatusOK); err != nil {
		return err
	}
	if !bytes.Equal(got.body, r.archive) {
		return fmt.Errorf("the artifacts (%d bytes) differ from the uploaded %d bytes", len(got.body), len(r.archive))
	}
	return nil
}

func (r *replay) checkRequest(e Exchange, got response) error {
	if value := got.header.Get("X-Gitlab-Last-Update"); value != "" {
		r.names["last_update"] = value
	}
	switch e.Answer.Status {
	case http.StatusConflict:
		return got.oneOf(http.StatusConflict, http.StatusNoContent)
	case http.StatusNoContent:
		if err := got.oneOf(http.StatusNoContent); err != nil {
			return err
		}
		if value := got.header.Get("X-Gitlab-Last-Update"); value == "" {
			return missing("X-GitLab-Last-Update")
		}
		return nil
	}
	wanted, err := offered(e.Answer.Body)
	if err != nil {
		return err
	}
	var job runningJob
	if err := got.into(&job.wireJob, http.StatusCreated); err != nil {
		return err
	}
	if err := wanted.accepts(job.wireJob); err != nil {
		return err
	}
	recorded := strings.TrimPrefix(wanted.Name, "job")
	r.jobs[recorded] = &job
	r.names["job "+recorded] = job.Token
	return nil
}

// checkTrace checks the answer to a part of a trace. expected is the size of the trace with this part.
func checkTrace(e Exchange, job *runningJob, expected int64, got response) error {
	if job.ended {
		// The recorded server stored the part and then refused the job. One that stores nothing refuses each part.
		if err := got.oneOf(http.StatusForbidden); err != nil {
			return err
		}
		return got.jobStatus("canceled", "failed")
	}
	if err := got.oneOf(e.Answer.Status); err != nil {
		return err
	}
	if err := got.jobStatus(e.Answer.Headers["Job-Status"]); err != nil {
		return err
	}
	if e.Answer.Status == http.StatusRequestedRangeNotSatisfiable {
		return got.headerIs("Range", e.Answer.Headers["Range"])
	}
	if err := got.headerIs("Range", "0-"+strconv.FormatInt(expected, 10)); err != nil {
		return err
	}
	return got.interval()
}

func checkUpdate(e Exchange, job *runningJob, got response) error {
	accepted := []int{e.Answer.Status}
	switch {
	case job.ended:
		accepted = []int{http.StatusOK, http.StatusForbidden}
	case e.Answer.Status == http.StatusAccepted:
		// The recorded server asked to wait for itself.
		accepted = []int{http.StatusAccepted, http.StatusOK}
	}
	if err := got.oneOf(accepted...); err != nil {
		return err
	}
	status := []string{e.Answer.Headers["Job-Status"]}
	switch {
	case got.status == http.StatusAccepted:
		return got.interval()
	case e.Answer.Headers["Job-Status"] == "failed":
		status = []string{"failed", "canceled"}
	case e.Answer.Status == http.StatusAccepted:
		status = []string{"success"}
	}
	return got.jobStatus(status...)
}

// oneOf requires one of the statuses.
func (g response) oneOf(statuses ...int) error {
	if !slices.Contains(statuses, g.status) {
		return fmt.Errorf("status %d instead of %v: %s", g.status, statuses, bytes.TrimSpace(g.body[:min(len(g.body), 500)]))
	}
	return nil
}

func (g response) into(target any, status int) error {
	if err := g.oneOf(status); err != nil {
		return err
	}
	if media, _, err := mime.ParseMediaType(g.header.Get("Content-Type")); err != nil || media != "application/json" {
		return fmt.Errorf("the media type is %q instead of application/json", g.header.Get("Content-Type"))
	}
	if err := json.Unmarshal(g.body, target); err != nil {
		return fmt.Errorf("decode the body: %w", err)
	}
	return nil
}

// runner requires the message about a runner.
func (g response) runner(status int) error {
	var body map[string]json.RawMessage
	if err := g.into(&body, status); err != nil {
		return err
	}
	var id int64
	if json.Unmarshal(body["id"], &id) != nil || id == 0 {
		return missing("id in the body")
	}
	var token string
	if json.Unmarshal(body["token"], &token) != nil || token == "" {
		return missing("token in the body")
	}
	if _, found := body["token_expires_at"]; !found {
		return missing("token_expires_at in the body")
	}
	return nil
}

func (g response) jobStatus(accepted ...string) error {
	if got := g.header.Get("Job-Status"); !slices.Contains(accepted, got) {
		return fmt.Errorf("the header Job-Status is %q instead of %v", got, accepted)
	}
	return nil
}

func (g response) headerIs(name, want string) error {
	if got := g.header.Get(name); got != want {
		return fmt.Errorf("the header %s is %q instead of %q", name, got, want)
	}
	return nil
}

func (g response) interval() error {
	const name = "X-Gitlab-Trace-Update-Interval"
	if seconds, err := strconv.Atoi(g.header.Get(name)); err != nil || seconds <= 0 {
		return fmt.Errorf("the header %s is %q instead of seconds", name, g.header.Get(name))
	}
	return nil
}

func missing(what string) error { return fmt.Errorf("the answer has no %s", what) }
