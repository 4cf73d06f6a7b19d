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
	"lockstep.internal/services/relay/intake"
	"lockstep.internal/services/relay/tunnel"
)

// maxLine of a configuration.
const maxLine = 1 << 20

// follow hears the agent's configuration through a session until ctx is done. It is the first thing that a relay hears of a session, too.
func (a *agent) follow(ctx context.Context, s *tunnel.Session) {
	reporter := a.book.Reporter()
	defer reporter.Leave()
	for inVain := 0; ctx.Err() == nil; inVain++ {
		err := a.listen(ctx, s, reporter)
		if ctx.Err() != nil {
			return
		}
		pause := a.cfg.Relay.pauses().Pause(inVain, 0, rand.Float64()) //nolint:gosec // spreads, and guards nothing
		a.logger.WarnContext(ctx, "the relay does not tell the configuration", slog.String("error", err.Error()), slog.Duration("delay", pause))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// listen reports each line that comes.
func (a *agent) listen(ctx context.Context, s *tunnel.Session, reporter *targets.Reporter) error {
	st, err := s.Open([]byte(intake.ConfigurationHead))
	if err != nil {
		return err
	}
	over := func() { st.Reset(tunnel.Cancelled, "the configuration is followed no more") }
	stop := context.AfterFunc(ctx, over)
	defer over()
	defer stop()
	lines := bufio.NewScanner(st)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		c, err := targets.Parse(lines.Bytes())
		if err != nil {
			return err
		}
		if reporter.Report(c) {
			a.told(ctx, errors.Join(c.Faults...))
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("hear the configuration: %w", err)
	}
	return io.EOF
}

// told says what counts from now on.
func (a *agent) told(ctx context.Context, faults error) {
	summary := a.book.Summary()
	log := a.logger.With(slog.Int64("config_revision", summary.Revision))
	log.InfoContext(ctx, "targets are as configured", slog.Int("targets", summary.Targets))
	if len(summary.Forbidden) > 0 {
		log.WarnContext(ctx, "targets are configured that targets.allowed_addresses does not allow", slog.Any("targets", summary.Forbidden))
	}
	if faults != nil {
		log.WarnContext(ctx, "the configuration has targets that are none", slog.String("error", faults.Error()))
	}
}
