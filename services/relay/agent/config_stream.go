package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/relay/agent/targets"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/tunnel"
)

// maxConfigLine is the largest configuration, in bytes.
const maxConfigLine = 1 << 20

// followConfig receives the agent's configuration on a session until ctx is done. The relay treats the agent as
// connected once this stream is open.
func (a *agent) followConfig(ctx context.Context, s *tunnel.Session) {
	source := a.targets.AddSource()
	defer source.Remove()
	for failures := 0; ctx.Err() == nil; failures++ {
		err := a.readConfigs(ctx, s, source)
		if ctx.Err() != nil {
			return
		}
		delay := a.cfg.Relay.backoff().Delay(failures, 0, rand.Float64()) //nolint:gosec // no secret
		a.logger.WarnContext(ctx, "receiving the configuration failed; retrying", logkey.Error(err),
			slog.Duration(logkey.RetryIn, delay))
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// readConfigs passes each received configuration to source.
func (a *agent) readConfigs(ctx context.Context, s *tunnel.Session, source *targets.Source) error {
	st, err := s.Open([]byte(agentlistener.ConfigStreamMetadata))
	if err != nil {
		return err
	}
	reset := func() { st.Reset(tunnel.Cancelled, "the agent no longer reads the configuration") }
	stop := context.AfterFunc(ctx, reset)
	defer reset()
	defer stop()
	lines := bufio.NewScanner(st)
	lines.Buffer(nil, maxConfigLine)
	for lines.Scan() {
		c, err := targets.Parse(lines.Bytes())
		if err != nil {
			return err
		}
		if source.Update(c) {
			a.logConfig(ctx, errors.Join(c.Errors...))
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("receive the configuration: %w", err)
	}
	return io.EOF
}

// logConfig logs the configuration in effect.
func (a *agent) logConfig(ctx context.Context, faults error) {
	summary := a.targets.Summary()
	log := a.logger.With(slog.Int64(logkey.Revision, summary.Revision))
	log.InfoContext(ctx, "applied the configuration", slog.Int(logkey.Count, summary.Targets))
	if len(summary.Forbidden) > 0 {
		log.WarnContext(ctx, "targets.allowed_addresses does not allow configured targets",
			slog.Any(logkey.Targets, summary.Forbidden))
	}
	if faults != nil {
		log.WarnContext(ctx, "ignored invalid targets", logkey.Error(faults))
	}
}
