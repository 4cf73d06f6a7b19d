package link

import (
	"context"
	"log/slog"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/relay/agentlistener"
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

// begin starts a session and returns it. When drainCtx is done the session is closed.
func (c *Connector) begin(ctx, drainCtx context.Context, connection tunnel.Connection) *session {
	task, stopTask := context.WithCancel(context.WithoutCancel(ctx))
	var opened *tunnel.Session
	opened = tunnel.NewSession(connection.Conn, true, connection.Encrypted, c.cfg.Tunnel, func(st *tunnel.Stream) {
		c.cfg.Accept(opened, st)
	})
	s := &session{
		Session: opened, drainTimeout: c.cfg.DrainTimeout, stopTask: stopTask, taskDone: make(chan struct{}),
		logger: c.cfg.Logger.With(slog.String(logkey.RelayURL, c.cfg.Relay),
			slog.String(logkey.RelayID, connection.Header.Get(agentlistener.HeaderRelay)),
			slog.String(logkey.ConnectionID, connection.Header.Get(agentlistener.HeaderConnection))),
	}
	startedAt := time.Now()
	s.logger.InfoContext(ctx, "connected to the relay")
	c.setStatus(Connected, 1, nil)
	cancelClose := context.AfterFunc(drainCtx, func() { _ = s.Close() }) // always nil
	c.running.Go(func() {
		err := s.Serve()
		cancelClose()
		stopTask()
		s.logger.InfoContext(ctx, "connection to the relay ended", slog.String(logkey.Reason, err.Error()),
			slog.Duration(logkey.Duration, time.Since(startedAt)))
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

// drainAfterOverlap drains the session after the overlap, in which relays learn of the new one.
func (s *session) drainAfterOverlap(ctx context.Context) {
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
		s.logger.Warn("closed a replaced connection with open streams", slog.Duration(logkey.Duration, s.drainTimeout))
		_ = s.Close() // always nil
	}
}
