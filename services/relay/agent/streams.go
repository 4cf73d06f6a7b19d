package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

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
		err = errNoKubernetes
	case i.Target == route.KubernetesAPI:
		a.metrics.streams.WithLabelValues(streamTaken).Inc()
		_ = s.Take()                                       // who serves it learns what is wrong with it
		a.kube.Take(s, session.Leaving(), a.streams.leave) // which is when it ends
		return
	default:
		err = a.join(s, i.Target)
	}
	a.streams.leave()
	if err == nil || s.Err() != nil { // nobody waits for it any more
		return
	}
	outcome, reason := streamRefused, tunnel.Refused
	if _, is := errors.AsType[*unreachableError](err); is {
		outcome, reason = streamUnreachable, tunnel.Unreachable
	}
	a.metrics.streams.WithLabelValues(outcome).Inc()
	a.logger.Warn("a stream is not joined with what it was opened for", slog.String("target", i.Target), slog.String("error", err.Error()))
	s.Reset(reason, err.Error())
}

var errNoKubernetes = errors.New("the Kubernetes API cannot be reached through this agent: kubernetes.enabled is false there")

// unreachableError is that a target is one, and does not answer.
type unreachableError struct {
	target string
	err    error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("target %s cannot be reached from the agent's cluster: %v", e.target, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// join carries a stream's bytes to a target and back until both directions have ended. An error is that there is nothing to be joined with.
func (a *agent) join(s *tunnel.Stream, target string) error {
	conn, release, err := a.reach(s, target)
	if err != nil {
		return err
	}
	defer release()
	a.metrics.streams.WithLabelValues(streamTaken).Inc()
	_ = s.Take()                              // joining shows what is wrong with it
	sent, received, _ := tunnel.Join(s, conn) // both ends know why it ended
	a.metrics.bytes.WithLabelValues("to_target").Add(float64(sent))
	a.metrics.bytes.WithLabelValues("from_target").Add(float64(received))
	return nil
}

// reach connects to a target, unless the stream is given up meanwhile: by who opened it, or, until release is called, because the target is another one now.
func (a *agent) reach(s *tunnel.Stream, target string) (joined tunnel.Conn, release func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Targets.DialTimeout)
	defer cancel()
	s.OnFailure(cancel)
	defer s.OnFailure(nil)
	select {
	case <-a.book.Known(): // the first streams may come before the agent has read its configuration
	case <-ctx.Done():
	}
	address, release, err := a.book.Use(target, func(why error) { a.end(s, target, why) })
	if err != nil {
		return nil, nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address.String())
	if err != nil {
		release()
		return nil, nil, &unreachableError{target, err}
	}
	joined, is := conn.(tunnel.Conn)
	if !is {
		release()
		_ = conn.Close() // nobody has used it
		return nil, nil, &unreachableError{target, fmt.Errorf("a %T has no directions that end separately", conn)}
	}
	return joined, release, nil
}

// end a stream whose target is another one now. Its connection to the old one ends with it.
func (a *agent) end(s *tunnel.Stream, target string, why error) {
	a.logger.Warn("a stream is ended, since its target has changed", slog.String("target", target), slog.String("error", why.Error()))
	s.Reset(tunnel.Refused, why.Error())
}
