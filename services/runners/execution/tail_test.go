package execution_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/wire"
)

// tails is a server of traces on a replica of its own.
type tails struct {
	t        testing.TB
	url      string
	draining chan struct{}
}

func (f *fixture) tails() *tails {
	f.t.Helper()
	traces, jobs := postgres.NewTraceChanges(f.pool), postgres.NewJobChanges(f.pool)
	served := &tails{t: f.t, draining: make(chan struct{})}
	tails := execution.NewTails(execution.TailConfig{
		Store: postgres.Traces{Pool: f.pool}, Traces: traces, Jobs: jobs, Logger: slog.New(slog.DiscardHandler),
		Now: f.clock.now, Draining: served.draining,
	})
	ctx, stop := context.WithCancel(context.Background())
	var group, ready sync.WaitGroup
	ready.Add(3)
	run := func(part func(ready func()) error) {
		group.Go(func() {
			if err := part(sync.OnceFunc(ready.Done)); err != nil {
				f.t.Error(err)
			}
		})
	}
	run(func(ready func()) error { return traces.Run(ctx, ready) })
	run(func(ready func()) error { return jobs.Run(ctx, ready) })
	run(func(ready func()) error { tails.Run(ctx, ready); return nil })
	ready.Wait()
	mux := http.NewServeMux()
	mux.Handle("GET /jobs/{id}/trace", tails.TailHandler(func(r *http.Request, id int64) error {
		if r.Header.Get("Authorization") != "me" || id == 99 {
			return fault.New(errcode.PermissionDenied, "not yours")
		}
		return nil
	}))
	server := httptest.NewServer(mux)
	served.url = server.URL
	f.t.Cleanup(func() {
		server.Close()
		stop()
		group.Wait()
	})
	return served
}

// reader is an open stream.
type reader struct {
	t     testing.TB
	body  io.ReadCloser
	lines *bufio.Scanner
}

func (s *tails) open(id, lastEventID, user string) (*reader, *http.Response) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/jobs/"+id+"/trace", http.NoBody)
	require.NoError(s.t, err)
	request.Header.Set("Authorization", user)
	if lastEventID != "" {
		request.Header.Set("Last-Event-ID", lastEventID)
	}
	transport := &http.Transport{}
	response, err := transport.RoundTrip(request)
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		response.Body.Close()
		transport.CloseIdleConnections()
	})
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return &reader{s.t, response.Body, lines}, response
}

// next returns the next event.
func (r *reader) next() (name, id string, data map[string]any) {
	r.t.Helper()
	// The stream is closed if the event does not come, which fails the test.
	timer := time.AfterFunc(soon, func() { r.body.Close() })
	defer timer.Stop()
	for r.lines.Scan() {
		field, value, _ := strings.Cut(r.lines.Text(), ": ")
		switch field {
		case "event":
			name = value
		case "id":
			id = value
		case "data":
			require.NoError(r.t, json.Unmarshal([]byte(value), &data))
		case "":
			if name != "" {
				return name, id, data
			}
		}
	}
	return "", "", nil
}

// expect reads events until the text is complete, and returns the id of the last one.
func (r *reader) expect(offset int, text string) string {
	r.t.Helper()
	got, last := "", ""
	for got != text {
		name, id, data := r.next()
		require.Equal(r.t, "trace", name)
		require.EqualValues(r.t, offset+len(got), data["offset"])
		got += data["text"].(string)
		require.True(r.t, strings.HasPrefix(text, got), "%q", got)
		last = id
	}
	return last
}

func TestReaderGetsTheTraceWhileItGrowsAndItsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "one\n")
	server := f.tails()
	r, response := server.open("7", "", "me")
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	require.Equal(t, "4", r.expect(0, "one\n"))
	f.append(ref, 4, "two\n")
	last := r.expect(4, "two\n")
	require.Equal(t, "8", last)

	state, err := f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, state.Interval, "somebody reads")

	again, _ := server.open("7", last, "me")
	f.append(ref, 8, "grün, 日")
	again.expect(8, "grün, 日")
	r.expect(8, "grün, 日")
	_, _, err = f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.NoError(t, err)
	for _, reader := range []*reader{r, again} {
		name, _, data := reader.next()
		require.Equal(t, "end", name)
		require.Equal(t, map[string]any{"state": "success"}, data)
		name, _, _ = reader.next()
		require.Empty(t, name, "the stream has ended")
	}
}

func TestRunnerSendsOftenWhileSomebodyReads(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	interval := func() time.Duration {
		state, err := f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
		require.NoError(t, err)
		return state.Interval
	}
	require.Equal(t, 30*time.Second, interval())
	traces := postgres.Traces{Pool: f.pool}
	require.NoError(t, traces.Watch(t.Context(), 7, f.clock.now().Add(time.Minute)))
	require.NoError(t, traces.Watch(t.Context(), 7, f.clock.now().Add(time.Second)))
	require.Equal(t, 3*time.Second, interval())
	f.append(ref, 0, "hello")
	f.clock.pass(time.Minute - 1)
	require.Equal(t, 3*time.Second, interval())
	f.clock.pass(1)
	require.Equal(t, 30*time.Second, interval())
	require.NoError(t, traces.Watch(t.Context(), 8, f.clock.now()), "a job that does not exist")
	require.Equal(t, "hello", f.trace(7))
}

func TestReaderGetsWholeCharacters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	r, _ := f.tails().open("7", "", "me")
	text := "日本"
	for i := range len(text) {
		f.append(ref, int64(i), text[i:i+1])
	}
	r.expect(0, text)
	f.append(ref, 6, "x\xe6")
	r.expect(6, "x")
	_, _, err := f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.NoError(t, err)
	name, _, data := r.next()
	require.Equal(t, "trace", name)
	require.Equal(t, "\uFFFD", data["text"])
	name, _, _ = r.next()
	require.Equal(t, "end", name)
}

func TestReaderOfAPendingJobWaitsForIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.pending(7)
	r, _ := f.tails().open("7", "", "me")
	canceled, err := f.job(7).Cancel(5, f.clock.now())
	require.NoError(t, err)
	f.store(canceled)
	name, _, data := r.next()
	require.Equal(t, "end", name)
	require.Equal(t, map[string]any{"state": "canceled"}, data)
}

func TestReaderIsRefusedWithAStatus(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.running(7)
	server := f.tails()
	for _, c := range []struct {
		id, last, user string
		status         int
	}{
		{"7", "", "nobody", http.StatusForbidden},
		{"99", "", "me", http.StatusForbidden},
		{"8", "", "me", http.StatusNotFound},
		{"x", "", "me", http.StatusBadRequest},
		{"-7", "", "me", http.StatusBadRequest},
		{"7", "x", "me", http.StatusBadRequest},
		{"7", "-1", "me", http.StatusBadRequest},
	} {
		_, response := server.open(c.id, c.last, c.user)
		require.Equal(t, c.status, response.StatusCode, "%+v", c)
	}
}

func TestStreamsEndWhenTheServiceDrains(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "hello")
	server := f.tails()
	r, _ := server.open("7", "", "me")
	r.expect(0, "hello")
	close(server.draining)
	name, _, _ := r.next()
	require.Empty(t, name)
}

func TestLongTraceIsSentInParts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "start\n")
	f.exec(`INSERT INTO trace_parts (job_id, generation, start, data) VALUES (7, 0, 6, $1)`,
		[]byte(strings.Repeat("0123456789", 100_000)))
	f.exec(`UPDATE traces SET state = jsonb_set(state, '{size}', '1000006')`)
	r, _ := f.tails().open("7", "", "me")
	got := 0
	for got < 1_000_006 {
		name, _, data := r.next()
		require.Equal(t, "trace", name)
		require.LessOrEqual(t, len(data["text"].(string)), 64<<10)
		got += len(data["text"].(string))
	}
	require.Equal(t, 1_000_006, got)
}
