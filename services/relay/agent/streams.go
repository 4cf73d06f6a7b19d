package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"lockstep.internal/services/relay/agent/targets"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// What became of streams, as metrics say it.
const (
	streamTaken       = "taken"
	streamRefused     = "refused"
	streamUnreachable = "unreachable"
	streamOverloaded  = "overloaded"
)

// take joins a stream that a relay has opened with what it was opened for.
func (a *agent) take(session *tunnel.Session, s *tunnel.Stream) {
	if !a.streams.enter() {
		a.metrics.streams.WithLabelValues(streamOverloaded).Inc()
		s.Reset(tunnel.Overloaded, "the agent has as many streams as it may, or is being stopped")
		return
	}
	i, err := route.Decode(s.Head())
	switch {
	case err != nil:
	case i.AgentID != a.id:
		err = fmt.Errorf("this is agent %d, not %d", a.id, i.AgentID)
	case i.Target == route.KubernetesAPI && a.kube == nil:
		err = &targets.UnknownError{Text: "the Kubernetes API cannot be reached through this agent: kubernetes.enabled is false there"}
	case i.Target == route.KubernetesAPI:
		a.metrics.streams.WithLabelValues(streamTaken).Inc()
		if s.Take() == nil {
			a.kube.Take(s, session.Leaving(), a.streams.leave)
			return
		}
	default:
		err = a.join(s, i.Target)
	}
	if err != nil {
		a.metrics.streams.WithLabelValues(streamRefused).Inc()
		a.logger.Warn("a stream was refused", slog.String("target", i.Target), slog.String("error", err.Error()))
		s.Reset(tunnel.Refused, err.Error())
	}
	a.streams.leave()
}

// join carries a stream's bytes to a target and back until both directions have ended. An error is that the target is none.
func (a *agent) join(s *tunnel.Stream, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Targets.DialTimeout)
	defer cancel()
	s.OnFailure(cancel)
	conn, err := a.reach(ctx, target)
	s.OnFailure(nil)
	var unknown *targets.UnknownError
	if errors.As(err, &unknown) {
		return err
	}
	if err != nil {
		a.metrics.streams.WithLabelValues(streamUnreachable).Inc()
		a.logger.Warn("a target cannot be reached", slog.String("target", target), slog.String("error", err.Error()))
		s.Reset(tunnel.Unreachable, fmt.Sprintf("target %s cannot be reached from the agent's cluster: %v", target, err))
		return nil
	}
	a.metrics.streams.WithLabelValues(streamTaken).Inc()
	if s.Take() != nil {
		_ = conn.Close() // nobody has used it
		return nil
	}
	sent, received, _ := tunnel.Join(s, conn) // both ends know why it ended
	a.metrics.bytes.WithLabelValues("to_target").Add(float64(sent))
	a.metrics.bytes.WithLabelValues("from_target").Add(float64(received))
	return nil
}

// reach connects to a target. The first streams may come before the agent has been told its configuration.
func (a *agent) reach(ctx context.Context, target string) (tunnel.Conn, error) {
	select {
	case <-a.book.Known():
	case <-ctx.Done():
	}
	address, err := a.book.Find(target)
	if err != nil {
		return nil, err //nolint:wrapcheck // for who asked
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address.String())
	if err != nil {
		return nil, err //nolint:wrapcheck // says what was dialled
	}
	joined, is := conn.(tunnel.Conn)
	if !is {
		_ = conn.Close() // nobody has used it
		return nil, fmt.Errorf("a %T has no directions that end separately", conn)
	}
	return joined, nil
}
