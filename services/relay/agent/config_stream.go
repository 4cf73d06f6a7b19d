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

	"lockstep.internal/services/relay/agent/targets"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/tunnel"
)

// maxConfigLine is the largest configuration, in bytes.
const maxConfigLine = 1 << 20

// followConfig receives the agent's configuration on a session until ctx is done. Its stream also tells the relay that
// the agent is ready.
func (a *agent) followConfig(ctx context.Context, s *tunnel.Session) {
	reporter := a.targets.Reporter()
	defer reporter.Leave()
	for failures := 0; ctx.Err() == nil; failures++ {
		err := a.readConfigs(ctx, s, reporter)
		if ctx.Err() != nil {
			return
		}
		delay := a.cfg.Relay.backoff().Delay(failures, 0, rand.Float64()) //nolint:gosec // no secret
		a.logger.WarnContext(ctx, "receiving the configuration failed; retrying", slog.String("error", err.Error()),
			slog.Duration("delay", delay))
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// readConfigs reports each configuration that it receives.
func (a *agent) readConfigs(ctx context.Context, s *tunnel.Session, reporter *targets.Reporter) error {
	st, err := s.Open([]byte(agentlistener.ConfigStreamHead))
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
		if reporter.Report(c) {
			a.logConfig(ctx, errors.Join(c.Faults...))
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
	log := a.logger.With(slog.Int64("revision", summary.Revision))
	log.InfoContext(ctx, "applied the configuration", slog.Int("count", summary.Targets))
	if len(summary.Forbidden) > 0 {
		log.WarnContext(ctx, "targets.allowed_addresses does not allow configured targets",
			slog.Any("targets", summary.Forbidden))
	}
	if faults != nil {
		log.WarnContext(ctx, "ignored invalid targets", slog.String("error", faults.Error()))
	}
}
