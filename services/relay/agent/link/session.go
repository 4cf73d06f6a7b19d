package link

import (
	"context"
	"log/slog"
	"time"

	"lockstep.internal/services/relay/tunnel"
)

// overlap is how long a connection and the one that takes its place both take streams.
const overlap = time.Second

// session is one connection at work.
type session struct {
	*tunnel.Session

	linger time.Duration
	logger *slog.Logger
	// dismiss ends what attends; attended is closed when it has ended.
	dismiss  context.CancelFunc
	attended chan struct{}
}

// begin has a session served until it ends. With finish it is closed.
func (k *Keeper) begin(ctx, finish context.Context, c Connection) *session {
	attend, dismiss := context.WithCancel(context.WithoutCancel(ctx))
	var opened *tunnel.Session
	opened = tunnel.NewSession(c.Conn, true, c.Secret, k.cfg.Tunnel, func(st *tunnel.Stream) { k.cfg.Accept(opened, st) })
	s := &session{
		Session: opened, linger: k.cfg.Linger, dismiss: dismiss, attended: make(chan struct{}),
		logger: k.cfg.Logger.With(slog.String("relay_url", k.cfg.Relay), slog.String("relay_id", c.RelayID), slog.String("connection_id", c.ID)),
	}
	began := time.Now()
	s.logger.InfoContext(ctx, "connected to a relay")
	k.note(Connected, 1, nil)
	cut := context.AfterFunc(finish, func() { _ = s.Close() }) // it has no outcome
	k.work.Go(func() {
		err := s.Serve()
		cut()
		dismiss()
		s.logger.InfoContext(ctx, "the connection to a relay has ended", slog.String("reason", err.Error()), slog.Duration("lasted", time.Since(began)))
		k.note(Ended, -1, k.unlessOthers(err))
	})
	k.work.Go(func() {
		defer close(s.attended)
		k.cfg.Attend(attend, s.Session)
	})
	return s
}

// unlessOthers is the error only where no other connection is open.
func (k *Keeper) unlessOthers(err error) error {
	if k.Status().Open > 1 {
		return nil
	}
	return err
}

// handOver leaves the session once relays had time to learn of the one that takes its place.
func (s *session) handOver(ctx context.Context) {
	timer := time.NewTimer(overlap)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.Done():
	case <-ctx.Done():
	}
	s.leave()
}

// leave drains the session and returns when it has ended, which it has to after a while.
func (s *session) leave() {
	s.dismiss()
	<-s.attended
	s.Drain()
	timer := time.NewTimer(s.linger)
	defer timer.Stop()
	select {
	case <-s.Done():
	case <-timer.C:
		s.logger.Warn("a connection that was replaced is cut with what is still open on it", slog.Duration("lingered", s.linger))
		_ = s.Close() // it has no outcome
	}
}
