package runnerreplay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/runnerclient"
)

// Target is the server under test. It should hold requests for a job only briefly: 35 of them have none.
type Target struct {
	// URL of the server, without /api/v4.
	URL string
	// HTTP defaults to a client with its own connections.
	HTTP *http.Client
	// RunnerToken of a runner that takes every job of Offer, and no other.
	RunnerToken string
	// RegistrationToken is accepted by the server. Empty means that registration is off and answers 410.
	RegistrationToken string
	// Offer makes a pending job.
	Offer func(context.Context, Job) error
	// Cancel cancels a running job on behalf of a user. The runner then runs its after_script.
	Cancel func(ctx context.Context, jobID int64) error
	// End ends a running job without its runner.
	End func(ctx context.Context, jobID int64) error
}

// Replay fails the test unless a runner would have accepted each answer; see [Run].
func Replay(t testing.TB, target Target) {
	t.Helper()
	require.NoError(t, Run(t.Context(), target))
}

// Run sends each recorded request in order and returns why a runner would not have accepted an answer.
func Run(ctx context.Context, target Target) error {
	if target.HTTP == nil {
		target.HTTP = &http.Client{Transport: &http.Transport{}}
		defer target.HTTP.CloseIdleConnections()
	}
	r := &replay{
		target: target, jobs: map[string]*runningJob{},
		names: map[string]string{"runner": target.RunnerToken, "registration": target.RegistrationToken},
	}
	if target.RegistrationToken == "" {
		r.names["registration"] = "registration-is-off"
	}
	for i, e := range Exchanges() {
		for range max(e.Repeat, 1) {
			if err := r.exchange(ctx, e); err != nil {
				return fmt.Errorf("exchange %d, %s, recorded answer %d: %w", i+1, e.Request, e.Answer.Status, err)
			}
		}
	}
	return nil
}

// replay is one run.
type replay struct {
	target Target
	// names are the values of names in braces.
	names map[string]string
	// jobs by their recorded id.
	jobs map[string]*runningJob
	// archive that was uploaded last.
	archive []byte
}

type runningJob struct {
	wireJob

	// trace is the whole trace, as far as it was sent.
	trace []byte
	ended bool
}

// response is a whole answer.
type response struct {
	status int
	header http.Header
	body   []byte
}

var jobPath = regexp.MustCompile(`^/api/v4/jobs/(\d+)`)

func (r *replay) exchange(ctx context.Context, e Exchange) error {
	var job *runningJob
	if match := jobPath.FindStringSubmatch(e.Path()); match != nil {
		if job = r.jobs[match[1]]; job == nil {
			return fmt.Errorf("the recording has no job %s", match[1])
		}
	}
	if err := r.cause(ctx, e, job); err != nil {
		return err
	}
	request, expected, err := r.request(ctx, e, job)
	if err != nil {
		return err
	}
	got, err := r.send(request)
	if err != nil {
		return err
	}
	return r.check(e, job, expected, got)
}

func (r *replay) cause(ctx context.Context, e Exchange, job *runningJob) error {
	switch {
	case e.Replay.Offer:
		wanted, err := offered(e.Answer.Body)
		if err != nil {
			return err
		}
		return r.target.Offer(ctx, wanted)
	case e.Replay.Cancel:
		return r.target.Cancel(ctx, job.ID)
	case e.Replay.End:
		job.ended = true
		return r.target.End(ctx, job.ID)
	}
	return nil
}

// request makes the request. expected is the size of the trace after it, for a part of a trace.
func (r *replay) request(ctx context.Context, e Exchange, job *runningJob) (*http.Request, int64, error) {
	var body io.Reader = http.NoBody
	header, expected := http.Header{}, int64(0)
	for name, value := range e.Headers {
		header.Set(name, r.replace(value, false))
	}
	path := e.Path()
	if job != nil {
		path = jobPath.ReplaceAllString(path, "/api/v4/jobs/"+strconv.FormatInt(job.ID, 10))
	}
	switch {
	case e.Method() == http.MethodPatch:
		part, start, err := job.part(e, header)
		if err != nil {
			return nil, 0, err
		}
		body, expected = bytes.NewReader(part), start+int64(len(part))
	case e.Files != nil:
		form, err := r.form(e, header.Get("Content-Type"))
		if err != nil {
			return nil, 0, err
		}
		body = io.MultiReader(form) // of unknown length, so that it is sent in chunks
	case e.Body != nil:
		if job != nil {
			r.names["checksum"] = fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE(job.trace))
		}
		body = strings.NewReader(r.replace(string(e.Body), true))
	case strings.HasPrefix(e.Request, "GET") && job != nil:
		var err error
		if path, err = r.download(header, job); err != nil {
			return nil, 0, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, e.Method(), r.target.URL+path, body)
	if err != nil {
		return nil, 0, fmt.Errorf("request: %w", err)
	}
	request.Header = header
	return request, expected, nil
}

// download returns the path of the artifacts of a job, and sets the token that the server gave for them.
func (r *replay) download(header http.Header, of *runningJob) (string, error) {
	for _, job := range r.jobs {
		for _, d := range job.Dependencies {
			if d.ID == of.ID {
				header.Set("Job-Token", d.Token)
				return fmt.Sprintf("/api/v4/jobs/%d/artifacts?direct_download=true", d.ID), nil
			}
		}
	}
	return "", fmt.Errorf("no job depends on job %d: a dependency has the id of the job that it names", of.ID)
}

// replace puts in the values of names in braces.
func (r *replay) replace(text string, asJSON bool) string {
	for name, value := range r.names {
		if asJSON {
			raw, err := json.Marshal(value)
			if err != nil {
				panic(err) // a string
			}
			value = string(raw[1 : len(raw)-1])
		}
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// part returns the bytes of a part of the trace that reach the server, and their offset.
func (j *runningJob) part(e Exchange, header http.Header) ([]byte, int64, error) {
	var start, end int64
	if _, err := fmt.Sscanf(header.Get("Content-Range"), "%d-%d", &start, &end); err != nil {
		return nil, 0, fmt.Errorf("recorded Content-Range: %w", err)
	}
	if start > int64(len(j.trace)) {
		return nil, 0, fmt.Errorf("the recording has no trace before %d", start)
	}
	for i := int64(len(j.trace)); i <= end; i++ {
		fill := byte('.')
		switch {
		case i-start < int64(len(e.Trace)):
			fill = e.Trace[i-start]
		case i == end:
			fill = '\n'
		}
		j.trace = append(j.trace, fill)
	}
	part := bytes.Clone(j.trace[start : end+1])
	if e.Replay.Damage {
		part[len(part)/2]++
	}
	if e.Replay.Lose > 0 {
		part = part[:e.Replay.Lose]
		header.Set("Content-Range", fmt.Sprintf("%d-%d", start, start+e.Replay.Lose-1))
	}
	return part, start, nil
}

// form returns a form with an archive, with the boundary of the content type.
func (r *replay) form(e Exchange, contentType string) (io.Reader, error) {
	files := map[string][]byte{}
	for name, content := range e.Files {
		files[name] = []byte(content)
	}
	archive, err := runnerclient.Zip(files)
	if err != nil {
		return nil, err
	}
	r.archive = archive
	_, parameters, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, fmt.Errorf("recorded Content-Type: %w", err)
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if err := form.SetBoundary(parameters["boundary"]); err != nil {
		return nil, fmt.Errorf("recorded boundary: %w", err)
	}
	part, err := form.CreateFormFile("file", "default.zip")
	if err == nil {
		_, err = part.Write(archive)
	}
	return &body, errors.Join(err, form.Close())
}

func (r *replay) send(request *http.Request) (response, error) {
	answer, err := r.target.HTTP.Do(request)
	if err != nil {
		return response{}, fmt.Errorf("send: %w", err)
	}
	raw, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return response{}, fmt.Errorf("read the answer: %w", err)
	}
	return response{answer.StatusCode, answer.Header, raw}, nil
}
