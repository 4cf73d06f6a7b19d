package link

import (
	"context"
	"log/slog"
	"time"

	"lockstep.internal/services/relay/tunnel"
)

// overlap is how long an old and a new connection both accept streams.
const overlap = time.Second

// session is one open connection.
type session struct {
	*tunnel.Session

	drainTimeout time.Duration
	logger       *slog.Logger
	// stopTask stops Config.OnSession; taskDone is closed when it has returned.
	stopTask context.CancelFunc
	taskDone chan struct{}
}

// begin serves a session until it ends. It is closed with finish.
func (c *Connector) begin(ctx, finish context.Context, connection Connection) *session {
	task, stopTask := context.WithCancel(context.WithoutCancel(ctx))
	var opened *tunnel.Session
	opened = tunnel.NewSession(connection.Conn, true, connection.Encrypted, c.cfg.Tunnel, func(st *tunnel.Stream) {
		c.cfg.Accept(opened, st)
	})
	s := &session{
		Session: opened, drainTimeout: c.cfg.DrainTimeout, stopTask: stopTask, taskDone: make(chan struct{}),
		logger: c.cfg.Logger.With(slog.String("relay_url", c.cfg.Relay), slog.String("relay_id", connection.RelayID),
			slog.String("connection_id", connection.ID)),
	}
	began := time.Now()
	s.logger.InfoContext(ctx, "connected to the relay")
	c.setStatus(Connected, 1, nil)
	closeAtFinish := context.AfterFunc(finish, func() { _ = s.Close() }) // always nil
	c.running.Go(func() {
		err := s.Serve()
		closeAtFinish()
		stopTask()
		s.logger.InfoContext(ctx, "connection to the relay ended", slog.String("reason", err.Error()),
			slog.Duration("duration", time.Since(began)))
		if c.Status().Open > 1 { // another connection is open
			err = nil
		}
		c.setStatus(Ended, -1, err)
	})
	c.running.Go(func() {
		defer close(s.taskDone)
		c.cfg.OnSession(task, s.Session)
	})
	return s
}

// replace drains the session after relays had time to learn of the new one.
func (s *session) replace(ctx context.Context) {
	timer := time.NewTimer(overlap)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.Done():
	case <-ctx.Done():
	}
	s.drain()
}

// drain drains the session and waits for its end, at most for the drain time-out.
func (s *session) drain() {
	s.stopTask()
	<-s.taskDone
	s.Drain()
	timer := time.NewTimer(s.drainTimeout)
	defer timer.Stop()
	select {
	case <-s.Done():
	case <-timer.C:
		s.logger.Warn("closed a replaced connection with open streams", slog.Duration("duration", s.drainTimeout))
		_ = s.Close() // always nil
	}
}
