package reload

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
)

// interval between two reads. The files are small, and only their content shows every change: a Secret of Kubernetes
// changes by a symbolic link.
const interval = time.Second

// Source is what files contain. All fields are required.
type Source[T any] struct {
	// Name of the setting that names the file, such as external.callers_file.
	Name string
	// Read reads and validates the files.
	Read func() (T, error)
	// Apply uses the content from now on.
	Apply func(T) error
	// Logger of changes and errors.
	Logger *slog.Logger
}

// Part reads the files once per second, and applies their content when it differs from the content at the last call.
// The caller has applied initial.
func Part[T any](s Source[T], initial T) service.Part {
	w := &watcher[T]{source: s, applied: initial}
	return service.Part{
		Name:  "reload " + s.Name,
		Check: w.check,
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			for {
				w.read(ctx)
				select {
				case <-ticker.C:
				case <-ctx.Done():
					return nil
				}
			}
		},
	}
}

type watcher[T any] struct {
	source Source[T]

	mu      sync.Mutex
	applied T
	err     error // why the files are not in use
}

func (w *watcher[T]) check(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return service.Degraded(w.err)
}

func (w *watcher[T]) read(ctx context.Context) {
	content, err := w.source.Read()
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := err == nil && !reflect.DeepEqual(content, w.applied)
	if changed {
		err = w.source.Apply(content)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("%s is not reloaded, the last valid content stays in use: %w", w.source.Name, err)
		if w.err == nil || w.err.Error() != err.Error() {
			w.source.Logger.ErrorContext(ctx, "reloading a file failed", logkey.Error(err))
		}
	case changed:
		w.applied = content
		w.source.Logger.InfoContext(ctx, "reloaded a file", slog.String(logkey.Name, w.source.Name))
	}
	w.err = err
}
