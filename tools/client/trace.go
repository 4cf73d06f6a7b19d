package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/tmaxmax/go-sse"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	eventStream = "text/event-stream"
	// maxTraceEvent bounds the memory for one event of a trace.
	maxTraceEvent = 16 << 20
	// silence is the time after which a connection counts as lost. The server sends a sign of life every 15 s.
	silence = time.Minute
)

var errSilence error = fault.New(errcode.Unavailable, "the runners service sends nothing")

// TraceFollower receives the output of a job.
type TraceFollower interface {
	// Answer is called when the server has answered, before its first part.
	Answer(header http.Header)
	// Text receives the next part of the output. end is the offset after it, in bytes. An error ends the call.
	Text(text string, end int64) error
}

// FollowTrace passes the output of a job from an offset in bytes to a follower until the job ends, and returns the
// state of the job, such as success. It moves the offset, so that the next call continues after a lost connection.
// Faults: unavailable if the connection is lost, not_found if the job does not exist or the caller may not see it.
func (r *Runners) FollowTrace(
	parent context.Context, job int64, offset *int64, to TraceFollower,
) (state string, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	timer := time.AfterFunc(silence, func() { cancel(errSilence) })
	defer timer.Stop()
	header := http.Header{"Accept": {eventStream}}
	if *offset > 0 {
		header.Set("Last-Event-ID", strconv.FormatInt(*offset, 10))
	}
	response, err := r.get(ctx, "/api/v4/jobs/"+strconv.FormatInt(job, 10)+"/trace", header)
	if err != nil {
		return "", err
	}
	defer response.Body.Close() //nolint:errcheck // the reader stops here
	if media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || media != eventStream {
		return "", fault.New(errcode.Unavailable, "%s does not stream the output of jobs: check its URL", r.URL)
	}
	to.Answer(response.Header)
	body := &watchedReader{Reader: response.Body, timer: timer}
	for event, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: maxTraceEvent}) {
		if err != nil {
			return "", r.lost(ctx, err)
		}
		state, err := takeTraceEvent(job, event, offset, to)
		if err != nil || state != "" {
			return state, err
		}
	}
	return "", r.lost(ctx, io.ErrUnexpectedEOF)
}

// takeTraceEvent passes one event on. state is that of the job if it was the last event.
func takeTraceEvent(job int64, event sse.Event, offset *int64, to TraceFollower) (state string, err error) {
	var data struct {
		Text  string `json:"text"`
		State string `json:"state"`
	}
	if event.Type != "trace" && event.Type != "end" {
		return "", nil // of a later version
	}
	if err := json.Unmarshal([]byte(event.Data), &data); err != nil {
		return "", malformedTrace(err, job)
	}
	if event.Type == "end" {
		if data.State == "" {
			return "", malformedTrace(errors.New("the state is missing"), job)
		}
		return data.State, nil
	}
	end, err := strconv.ParseInt(event.LastEventID, 10, 64)
	if err != nil {
		return "", malformedTrace(err, job)
	}
	if err := to.Text(data.Text, end); err != nil {
		return "", err
	}
	*offset = end
	return "", nil
}

func malformedTrace(err error, job int64) error {
	return fault.Wrap(err, errcode.Internal, "the server sent a malformed part of the trace of job %d: %v", job, err)
}

// watchedReader restarts a timer with each read.
type watchedReader struct {
	io.Reader

	timer *time.Timer
}

func (w *watchedReader) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.timer.Reset(silence)
	}
	return n, err //nolint:wrapcheck // a reader
}

// get sends a request with an access token, and a second time with a new one if the service refuses the first.
func (r *Runners) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	token, err := r.access.token(ctx, runnersAudience, "")
	if err != nil {
		return nil, err
	}
	response, err := r.getWith(ctx, path, header, token)
	if !fault.Is(err, errcode.Unauthenticated) {
		return response, err
	}
	if token, err = r.access.token(ctx, runnersAudience, token); err != nil {
		return nil, err
	}
	return r.getWith(ctx, path, header, token)
}

func (r *Runners) getWith(ctx context.Context, path string, header http.Header, token string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+path, http.NoBody)
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "invalid URL of the runners service: %v", err)
	}
	request.Header = header.Clone()
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := r.http.Do(request)
	if err != nil {
		return nil, r.lost(ctx, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close() //nolint:errcheck // the body was read
	if err := fault.FromHTTP(response); err != nil {
		return nil, err
	}
	return nil, fault.New(errcode.Unavailable, "%s responded %s instead of 200: check its URL", r.URL, response.Status)
}

// lost returns the fault of a connection that failed.
func (r *Runners) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fault.From(context.Cause(ctx))
	}
	if why := Reason(err); why != "" {
		return fault.Wrap(err, errcode.Unavailable, "cannot reach %s: %s", r.URL, why)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.Wrap(err, errcode.Unavailable, "%s ended the connection", r.URL)
	}
	return fault.Wrap(err, errcode.Unavailable, "the connection to %s failed: %v", r.URL, err)
}
