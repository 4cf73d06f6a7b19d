package leader

import (
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"lockstep.internal/libs/config"
)

// Config is the timing of an election, a section of a service's configuration.
type Config struct {
	Duration      time.Duration `yaml:"duration" help:"time after which other replicas take over a lease that is not renewed"`
	RenewDeadline time.Duration `yaml:"renew_deadline" help:"time after which a leader that cannot renew the lease stops; less than duration"`
	RetryPeriod   time.Duration `yaml:"retry_period" help:"pause between attempts to acquire or renew the lease"`
}

// DefaultConfig is 15 s, 10 s and 2 s.
func DefaultConfig() Config {
	return Config{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
}

// Validate checks that a leader stops before another replica takes over.
func (c Config) Validate() []error {
	var errs []error
	if c.RetryPeriod <= 0 {
		errs = append(errs, config.Invalid("retry_period", "%s is not a positive duration", c.RetryPeriod))
	}
	// client-go adds a jitter of up to 1.2 times the period.
	if c.RenewDeadline.Seconds() <= leaderelection.JitterFactor*c.RetryPeriod.Seconds() {
		errs = append(errs, config.Invalid("renew_deadline", "%s must be more than %.1f times retry_period (%s)",
			c.RenewDeadline, leaderelection.JitterFactor, c.RetryPeriod))
	}
	if c.Duration <= c.RenewDeadline || c.Duration < time.Second {
		errs = append(errs, config.Invalid("duration", "%s must be more than renew_deadline (%s) and at least 1s",
			c.Duration, c.RenewDeadline))
	}
	return errs
}
