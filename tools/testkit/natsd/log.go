package natsd

import (
	"fmt"
	"log/slog"
	"sync"
)

// serverLog forwards the server's log to slog. It records fatal messages instead of exiting the process.
type serverLog struct {
	logger *slog.Logger

	mu    sync.Mutex
	fatal string
}

func (l *serverLog) Noticef(format string, args ...any) { l.logger.Info(fmt.Sprintf(format, args...)) }

func (l *serverLog) Warnf(format string, args ...any) { l.logger.Warn(fmt.Sprintf(format, args...)) }

func (l *serverLog) Errorf(format string, args ...any) {
	l.logger.Error(fmt.Sprintf(format, args...))
}
func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}

func (l *serverLog) Fatalf(format string, args ...any) {
	l.logger.Error(fmt.Sprintf(format, args...))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = fmt.Sprintf(format, args...)
}

func (l *serverLog) lastFatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
