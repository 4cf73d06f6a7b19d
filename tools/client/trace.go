package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/tmaxmax/go-sse"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	eventStream = "text/event-stream"
	// maxTraceEvent bounds the memory for one event of a trace.
	maxTraceEvent = 16 << 20
)

// TraceFollower receives the output of a job.
type TraceFollower interface {
	// Answer is called when the server has answered, before its first event.
	Answer(header http.Header)
	// Text receives the next part of the output.
	Text(text string) error
}

// TracePosition is how far a trace was received. The zero value is its beginning.
type TracePosition struct {
	// lastEvent is the id of the last event.
	lastEvent string
}

// Trace writes the output that a job has so far. Fault not_found: the job does not exist, or the caller may not see it.
func (r *Runners) Trace(ctx context.Context, job int64, to io.Writer) error {
	response, err := r.get(ctx, r.tracePath(job), http.Header{"Accept": {"text/plain"}})
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // the body was read
	target := &writeError{Writer: to}
	if _, err := io.Copy(target, response.Body); err != nil {
		if target.err != nil {
			return target.err
		}
		return r.lost(ctx, err)
	}
	return nil
}

// FollowTrace passes the output of a job from a position to a follower until the job ends, and returns the state of the
// job, such as success. It moves the position, so that the next call continues after a lost connection. Fault
// unavailable: the connection is lost.
func (r *Runners) FollowTrace(
	ctx context.Context, job int64, from *TracePosition, to TraceFollower,
) (state string, err error) {
	header := http.Header{"Accept": {eventStream}}
	if from.lastEvent != "" {
		header.Set("Last-Event-ID", from.lastEvent)
	}
	response, err := r.get(ctx, r.tracePath(job), header)
	if err != nil {
		return "", err
	}
	defer response.Body.Close() //nolint:errcheck // the reader stops here
	if media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || media != eventStream {
		return "", fault.New(errcode.Unavailable, "%s does not stream the output of jobs: check its URL", r.URL)
	}
	to.Answer(response.Header)
	for event, err := range sse.Read(response.Body, &sse.ReadConfig{MaxEventSize: maxTraceEvent}) {
		if err != nil {
			return "", r.lost(ctx, err)
		}
		switch event.Type {
		case "trace":
			var part struct {
				Text string `json:"text"`
			}
			if err := json.Unmarshal([]byte(event.Data), &part); err != nil {
				return "", fault.Wrap(err, errcode.Internal, "the trace of job %d has a malformed event: %v", job, err)
			}
			if err := to.Text(part.Text); err != nil {
				return "", err
			}
			from.lastEvent = event.LastEventID
		case "end":
			var end struct {
				State string `json:"state"`
			}
			if err := json.Unmarshal([]byte(event.Data), &end); err != nil {
				return "", fault.Wrap(err, errcode.Internal, "the trace of job %d has a malformed end: %v", job, err)
			}
			return end.State, nil
		}
	}
	return "", r.lost(ctx, io.ErrUnexpectedEOF)
}

func (r *Runners) tracePath(job int64) string {
	return "/api/v4/jobs/" + strconv.FormatInt(job, 10) + "/trace"
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

// writeError remembers the error of a writer, which io.Copy mixes with those of the reader.
type writeError struct {
	io.Writer

	err error
}

func (w *writeError) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err //nolint:wrapcheck // the error of a writer
}
