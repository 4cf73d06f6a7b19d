package directory

import (
	"context"
	"errors"
	"log/slog"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
)

// Part runs the copy as a part of a service, named directory, after the part nats.
func (d *Directory) Part() service.Part {
	return service.Part{
		Name: "directory", StartAfter: []string{"nats"}, Check: d.Check,
		Run: func(ctx context.Context, self *service.Handle) error {
			d.Run(ctx, self.Ready)
			return nil
		},
	}
}

// Run keeps the copy until ctx is done, and calls ready once it is loaded for the first time. It waits for an
// unavailable server or a missing stream.
func (d *Directory) Run(ctx context.Context, ready func()) {
	d.reader.Run(ctx, func() {
		d.readyOnce.Do(func() { close(d.ready) })
		ready()
	})
}

// Check is a health check. It fails before the copy is ready, and is degraded when the stream has
// not been read for StaleAfter.
func (d *Directory) Check(ctx context.Context) error {
	return d.reader.Check(ctx)
}

// Ready reports whether the copy was loaded once.
func (d *Directory) Ready() bool { return d.reader.Ready() }

// WhenReady returns a channel that is closed once the copy is loaded.
func (d *Directory) WhenReady() <-chan struct{} { return d.ready }

// UpToDate reports whether the copy is ready and reads the stream without errors. Then a missing entry does not
// exist or was created just now.
func (d *Directory) UpToDate() bool { return d.reader.UpToDate() }

// loader applies what the reader reads. A recreated stream is read into a new copy, which replaces the old one when
// it is loaded.
type loader struct {
	*Directory

	target *entries
}

// Begin implements lastvalue.Handler.
func (l *loader) Begin(replaced bool) {
	l.target = l.known
	if replaced {
		l.target = newEntries()
	}
}

// Apply implements lastvalue.Handler.
func (l *loader) Apply(ctx context.Context, m lastvalue.Message) {
	l.mu.Lock()
	changed, err := l.target.apply(l.cfg.Cell, m.Subject, m.Revision(), m.Data)
	if changed && l.target == l.known {
		l.notifyChanged()
	}
	l.mu.Unlock()
	switch {
	case errors.Is(err, errUnknownKind):
		l.cfg.Logger.DebugContext(
			ctx, "ignored a directory entry of an unknown kind", slog.String(logkey.Subject, m.Subject),
		)
	case err != nil:
		l.cfg.Logger.ErrorContext(ctx, "dropped a malformed directory entry", logkey.Error(err))
	}
}

// Loaded implements lastvalue.Handler.
func (l *loader) Loaded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known != l.target {
		l.known = l.target
		l.notifyChanged()
	}
}

// notifyChanged wakes the waiters of Changed. The lock must be held.
func (d *Directory) notifyChanged() {
	close(d.changed)
	d.changed = make(chan struct{})
}
