package ingest_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
)

// logs records log records at level warn and above.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (l *logs) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *logs) WithGroup(string) slog.Handler { return l }

func (l *logs) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.lines = append(l.lines, line)
	return nil
}

func (l *logs) matching(part string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}
