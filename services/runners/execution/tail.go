package execution

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// tailPart is how much of a trace is read and sent at once, in bytes.
	tailPart = 64 << 10
	// tailInterval is the time between two signs of life to a reader, and to the runner that somebody reads.
	tailInterval = 15 * time.Second
)

// tracePart is the data of the event "trace". Text has whole characters; bytes that are not UTF-8 are U+FFFD.
type tracePart struct {
	Offset int64  `json:"offset"`
	Text   string `json:"text"`
}

// traceEnd is the data of the event "end".
type traceEnd struct {
	State string `json:"state"`
}

// TailHandler returns the handler of GET …/{id}/trace: it sends the trace of a job as server-sent events, until the job
// has ended. The event "trace" has a part of the trace with its offset, and the offset after it as its id: a client
// that connects again continues there. The event "end" has the state of the job, and is the last one. A stream that
// ends without it was interrupted.
//
// authorize checks whether the request may read the trace of a job. A reader costs the memory of one part. The listener
// disconnects one that reads nothing for its write_timeout.
func (t *Tails) TailHandler(authorize func(r *http.Request, jobID int64) error) http.Handler {
	return fault.Handler(t.cfg.Logger, func(w http.ResponseWriter, r *http.Request) error {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil || id <= 0 {
			return fault.New(errcode.InvalidArgument, "the id of the job is not a positive integer")
		}
		if err := authorize(r, id); err != nil {
			return err
		}
		offset, err := lastEventID(r)
		if err != nil {
			return err
		}
		wake, stop := t.wait(id)
		defer stop()
		// The first part is read before the status is sent, so that errors have theirs.
		part, err := t.cfg.Store.ReadTrace(r.Context(), id, offset, tailPart)
		if err != nil {
			return err
		}
		header := w.Header()
		header.Set("Content-Type", "text/event-stream")
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Accel-Buffering", "no")
		w.WriteHeader(http.StatusOK)
		s := stream{writer: w, control: http.NewResponseController(w)}
		err = s.comment() // the reader knows at once that the stream is open
		if err == nil {
			err = t.follow(r.Context(), id, part, s, wake)
		}
		if err != nil && r.Context().Err() == nil {
			t.cfg.Logger.DebugContext(r.Context(), "sending a trace ended early", logkey.Error(err))
		}
		return nil
	})
}

// lastEventID returns the offset at which the reader continues.
func lastEventID(r *http.Request) (int64, error) {
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		return 0, nil
	}
	offset, err := strconv.ParseInt(text, 10, 64)
	if err != nil || offset < 0 {
		return 0, fault.New(errcode.InvalidArgument, "Last-Event-ID: must be the id of an event of this stream")
	}
	return offset, nil
}

// follow sends the part and what comes after it.
func (t *Tails) follow(ctx context.Context, id int64, part TracePart, s stream, wake <-chan struct{}) error {
	signs := time.NewTicker(t.cfg.Interval)
	defer signs.Stop()
	watch := true
	draining := cmp.Or(t.cfg.Draining, service.Draining(ctx))
	for {
		offset, err := s.part(part)
		switch {
		case err != nil:
			return err
		case part.Complete():
			return s.event("end", "", traceEnd{string(part.State)})
		}
		switch {
		case offset > part.Offset:
		case watch:
			if err := t.cfg.Store.Watch(ctx, id, t.cfg.Now().Add(3*t.cfg.Interval)); err != nil {
				return err
			}
			watch = false // what came before is read now, and what comes after wakes the reader
		default:
			select {
			case <-wake:
			case <-signs.C:
				watch = true
				if err := s.comment(); err != nil {
					return err
				}
			case <-draining:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if part, err = t.cfg.Store.ReadTrace(ctx, id, offset, tailPart); err != nil {
			return err
		}
	}
}

// stream writes server-sent events.
type stream struct {
	writer  http.ResponseWriter
	control *http.ResponseController
}

// part sends a part of a trace. It returns the offset after what was sent: a character that is not complete waits for
// its other bytes.
func (s stream) part(p TracePart) (int64, error) {
	data := p.Data
	if !p.Complete() {
		data = data[:wholeCharacters(data)]
	}
	if len(data) == 0 {
		return p.Offset, nil
	}
	next := p.Offset + int64(len(data))
	return next, s.event("trace", strconv.FormatInt(next, 10), tracePart{Offset: p.Offset, Text: string(data)})
}

// wholeCharacters returns the number of bytes before a last character that is not complete.
func wholeCharacters(data []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		at := len(data) - i
		if utf8.RuneStart(data[at]) {
			if !utf8.FullRune(data[at:]) {
				return at
			}
			break
		}
	}
	return len(data)
}

func (s stream) event(name, id string, data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	text := "event: " + name + "\n"
	if id != "" {
		text += "id: " + id + "\n"
	}
	return s.write(text + "data: " + string(raw) + "\n\n")
}

// comment is a sign of life that readers ignore.
func (s stream) comment() error { return s.write(":\n\n") }

func (s stream) write(text string) error {
	if _, err := s.writer.Write([]byte(text)); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	if err := s.control.Flush(); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	return nil
}
