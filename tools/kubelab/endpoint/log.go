package endpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	conversion "k8s.io/kubernetes/pkg/apis/core/v1"

	"lockstep.internal/tools/kubelab/process"
)

// stampFormat is the format of times in the logs of kubelets.
const stampFormat = "2006-01-02T15:04:05.000000000Z07:00"

var errLimitReached = errors.New("the limit of bytes is reached")

func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	var options v1.PodLogOptions
	query := r.URL.Query()
	if err := conversion.Convert_url_Values_To_v1_PodLogOptions(&query, &options, nil); err != nil {
		http.Error(w, "read the options: "+err.Error(), http.StatusBadRequest)
		return
	}
	pod, ok := s.find(w, r)
	if !ok {
		return
	}
	if log, has := s.Processes.HasProcess(pod, r.PathValue("container"), options.Previous); has {
		s.processLog(w, r, pod, log, options)
		return
	}
	run, err := RunOf(pod, r.PathValue("container"), options.Previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx := r.Context()
	if options.Follow && run.Ended == nil {
		alive, release := s.alive(ctx, pod, &run)
		defer release()
		ctx = alive
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	now := s.Clock.Now()
	p := newPrinter(w, options, now)
	// Ignore errors: the client has left, or the byte limit was reached.
	_ = s.printLog(ctx, run, first(run.Count(now), options.TailLines), options.Follow, p.print)
}

// processLog serves the log of a container that runs as a process.
func (s *Server) processLog(
	w http.ResponseWriter, r *http.Request, pod *v1.Pod, log *process.Log, options v1.PodLogOptions,
) {
	container := r.PathValue("container")
	if log == nil {
		message := fmt.Sprintf("container %q in pod %q is waiting to start: ContainerCreating", container, pod.Name)
		if options.Previous {
			message = fmt.Sprintf("previous terminated container %q in pod %q not found", container, pod.Name)
		}
		http.Error(w, message, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	p := newPrinter(w, options, s.Clock.Now())
	lines, next, changed := log.Lines(0)
	from := first(len(lines), options.TailLines)
	for {
		printed := make([]Line, 0, len(lines))
		for _, line := range lines[from:] {
			printed = append(printed, Line(line))
		}
		if p.print(printed) != nil || !options.Follow || changed == nil {
			return // the client has left, the limit was reached, or the log is complete
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		lines, next, changed = log.Lines(next)
		from = 0
	}
}

// first returns the index of the first line to print, of count lines.
func first(count int, tail *int64) int {
	from := max(count-maxLines, 0)
	if tail != nil {
		from = max(from, count-int(min(*tail, maxLines)))
	}
	return from
}

// printLog prints the lines of a run from index from. With follow it continues until the run or ctx ends.
func (s *Server) printLog(ctx context.Context, run Run, from int, follow bool, write func([]Line) error) error {
	for {
		now := s.Clock.Now()
		var lines []Line
		for ; from < run.Count(now); from++ {
			lines = append(lines, run.Line(from))
		}
		if err := write(lines); err != nil || !follow || run.Ended != nil {
			return err
		}
		next := s.Clock.NewTimer(run.Line(from).Time.Sub(now))
		select {
		case <-next.C():
		case <-ctx.Done():
			next.Stop()
			if run.Ended = endOf(ctx); run.Ended == nil {
				return nil
			}
		}
	}
}

// followFrom returns a function that prints the following lines of a run.
func (s *Server) followFrom(run Run) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		now := s.Clock.Now()
		return s.printLog(ctx, run, run.Count(now), true, newPrinter(w, v1.PodLogOptions{}, now).print)
	}
}

// printer writes lines according to the options.
type printer struct {
	w       io.Writer
	options v1.PodLogOptions
	since   time.Time
}

func newPrinter(w io.Writer, options v1.PodLogOptions, now time.Time) *printer {
	p := &printer{w: w, options: options}
	switch {
	case options.SinceTime != nil:
		p.since = options.SinceTime.Time
	case options.SinceSeconds != nil:
		p.since = now.Add(-time.Duration(*options.SinceSeconds) * time.Second)
	}
	return p
}

// print writes lines up to the byte limit.
func (p *printer) print(lines []Line) error {
	var text bytes.Buffer
	for _, line := range lines {
		// All lines are of standard output.
		if line.Time.Before(p.since) || (p.options.Stream != nil && *p.options.Stream == v1.LogStreamStderr) {
			continue
		}
		if p.options.Timestamps {
			text.WriteString(line.Time.UTC().Format(stampFormat) + " ")
		}
		text.WriteString(line.Text + "\n")
	}
	enough := false
	if limit := p.options.LimitBytes; limit != nil {
		enough = int64(text.Len()) >= *limit
		text.Truncate(int(min(int64(text.Len()), *limit)))
		p.options.LimitBytes = new(*limit - int64(text.Len()))
	}
	if _, err := p.w.Write(text.Bytes()); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	if flusher, ok := p.w.(http.Flusher); ok {
		flusher.Flush()
	}
	if enough {
		return errLimitReached
	}
	return nil
}
