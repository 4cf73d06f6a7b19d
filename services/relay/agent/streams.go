package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/relay/agent/targets"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// Outcomes of streams in metrics.
const (
	streamTaken       = "taken"
	streamRefused     = "refused"
	streamUnreachable = "unreachable"
	streamOverloaded  = "overloaded"
)

// acceptStream connects a stream, which a relay has opened, to its target.
func (a *agent) acceptStream(session *tunnel.Session, s *tunnel.Stream) {
	if !a.streams.acquire() {
		a.metrics.streams.WithLabelValues(streamOverloaded).Inc()
		s.Reset(tunnel.Overloaded, "the agent reached max_streams, or is stopping")
		return
	}
	to, err := route.Decode(s.Metadata())
	switch {
	case err != nil:
	case to.AgentID != a.id:
		err = fmt.Errorf("this is agent %d, not %d", a.id, to.AgentID)
	case to.Target == route.KubernetesAPI && a.kube == nil:
		err = errNoKubernetes
	case to.Target == route.KubernetesAPI:
		a.metrics.streams.WithLabelValues(streamTaken).Inc()
		_ = s.Accept() // the next use of the stream returns the error
		a.kube.ServeStream(s, session.LocalDraining(), a.streams.release)
		return
	default:
		err = a.join(s, to.Target)
	}
	a.streams.release()
	if err == nil || s.Err() != nil { // the relay has reset the stream
		return
	}
	outcome, reason := streamRefused, tunnel.Refused
	if _, ok := errors.AsType[*unreachableError](err); ok {
		outcome, reason = streamUnreachable, tunnel.Unreachable
	}
	a.metrics.streams.WithLabelValues(outcome).Inc()
	a.logger.Warn("joining a stream with its target failed", slog.String(logkey.Target, to.Target), logkey.Error(err))
	s.Reset(reason, err.Error())
}

var errNoKubernetes = errors.New("Kubernetes API forwarding is disabled: kubernetes.enabled is false")

// unreachableError: the agent cannot connect to the target.
type unreachableError struct {
	target string
	err    error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("target %s cannot be reached from the agent's cluster: %v", e.target, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// join copies between a stream and a target until both directions have ended. It returns an error if it cannot connect.
func (a *agent) join(s *tunnel.Stream, target string) error {
	conn, release, err := a.dialTarget(s, target)
	if err != nil {
		return err
	}
	defer release()
	a.metrics.streams.WithLabelValues(streamTaken).Inc()
	_ = s.Accept()                            // Join returns the error
	sent, received, _ := tunnel.Join(s, conn) // both ends know the error
	a.metrics.bytes.WithLabelValues("to_target").Add(float64(sent))
	a.metrics.bytes.WithLabelValues("from_target").Add(float64(received))
	return nil
}

// dialTarget connects to a target. It stops if the relay resets the stream. Until release is called, a change
// of the target's address resets the stream.
func (a *agent) dialTarget(s *tunnel.Stream, target string) (joined tunnel.Conn, release func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Targets.DialTimeout)
	defer cancel()
	s.OnFailure(cancel)
	defer s.OnFailure(nil)
	address, release, err := a.address(ctx, s, target)
	if err != nil {
		return nil, nil, err
	}
	conn, err := a.cfg.Targets.DialContext(ctx, "tcp", address.String())
	if err != nil {
		release()
		return nil, nil, &unreachableError{target, err}
	}
	joined, ok := conn.(tunnel.Conn)
	if !ok {
		release()
		_ = conn.Close() // it was not used
		return nil, nil, &unreachableError{target, fmt.Errorf("%T does not support half-close", conn)}
	}
	return joined, release, nil
}

// address resolves a target. Until release is called, a change of the address resets the stream.
func (a *agent) address(
	ctx context.Context, s *tunnel.Stream, target string,
) (address targets.Address, release func(), err error) {
	if to, is := route.ParseWorkspace(target); is {
		address, err = a.workspaces.Address(to)
		return address, func() {}, err
	}
	select {
	case <-a.targets.Configured(): // the first streams may arrive before the configuration
	case <-ctx.Done():
	}
	return a.targets.Use(target, func(why error) { a.resetStream(s, target, why) })
}

// resetStream resets a stream after its target has changed.
func (a *agent) resetStream(s *tunnel.Stream, target string, why error) {
	a.logger.Warn("reset a stream: its target has changed", slog.String(logkey.Target, target), logkey.Error(why))
	s.Reset(tunnel.Refused, why.Error())
}
