// Package controller has the settings of admission controllers and their limits.
package controller

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/policy"
)

// Defaults and limits.
const (
	DefaultTimeout        = 10 * time.Minute
	MaxTimeout            = time.Hour
	MaxAttempts           = 20
	DefaultRequestTimeout = 10 * time.Second
	MaxRequestTimeout     = time.Minute
	DefaultConcurrency    = 10
	MaxConcurrency        = 100
	// DefaultOverlap is how long the secret before a rotation signs requests.
	DefaultOverlap = 24 * time.Hour
	MaxOverlap     = 7 * 24 * time.Hour
	// MaxPerOwner is the maximum number of controllers of one project, group or instance.
	MaxPerOwner = 50

	maxRate  = 10_000
	maxURL   = 2048
	maxCA    = 64 << 10
	maxMatch = 4096 // characters, as for other expressions in CEL
	maxName  = 255  // of a variable

	minSecret, maxSecret = 24, 64
	newSecret            = 32
	secretPrefix         = "whsec_"
)

// Owner is where a controller is registered. ID is 0 for the instance.
type Owner struct {
	Level chain.Level
	ID    int64
}

// Webhook is a web server that decides.
type Webhook struct {
	URL string `json:"url"`
	// CA has certificates in PEM; empty for those of the system.
	CA             string        `json:"ca,omitempty"`
	RequestTimeout time.Duration `json:"request_timeout"`
	Concurrency    int           `json:"concurrency"`
	// Rate is the number of requests per second; 0 for no limit.
	Rate float64 `json:"rate,omitempty"`
}

// Settings of a controller. Exactly one of Webhook and Policy is set.
type Settings struct {
	Name          string              `json:"name"`
	Mode          chain.Mode          `json:"mode"`
	Mutating      bool                `json:"mutating,omitempty"`
	FailurePolicy chain.FailurePolicy `json:"failure_policy"`
	Timeout       time.Duration       `json:"timeout"`
	MaxAttempts   int                 `json:"max_attempts"`
	Match         string              `json:"match,omitempty"`
	Variables     []string            `json:"variables,omitempty"`
	Webhook       *Webhook            `json:"webhook,omitempty"`
	Policy        string              `json:"policy,omitempty"`
}

// Controller is a stored controller.
type Controller struct {
	Settings
	Owner

	ID       int64
	Revision int64
	Position int
	// Secret has the sealed signing secrets of a webhook. The one before signs until SecretBeforeUntil.
	Secret               []byte
	SecretBeforeUntil    time.Time
	CreatedBy            int64
	CreatedAt, UpdatedAt time.Time
	Deleted              bool
}

// Chain returns what the chain knows about the controller.
func (c Controller) Chain() chain.Controller {
	return chain.Controller{
		ID: c.ID, Revision: c.Revision, Name: c.Name, Level: c.Level, OwnerID: c.Owner.ID, Position: c.Position,
		Mutating: c.Mutating, Mode: c.Mode, FailurePolicy: c.FailurePolicy, MaxAttempts: c.MaxAttempts,
		AllVariables: len(c.Variables) == 0, Variables: c.Variables,
	}
}

// Concurrency returns how many jobs ask the controller at the same time.
func (c Controller) Concurrency() int {
	if c.Webhook == nil || c.Deleted {
		return DefaultConcurrency
	}
	return c.Webhook.Concurrency
}

// WithDefaults returns the settings with defaults for those that are not set.
func (s Settings) WithDefaults() Settings {
	if s.Mode == "" {
		s.Mode = chain.Enforced
	}
	if s.FailurePolicy == "" {
		s.FailurePolicy = chain.Deny
	}
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = chain.DefaultMaxAttempts
	}
	if s.Webhook != nil {
		hook := *s.Webhook
		if hook.RequestTimeout == 0 {
			hook.RequestTimeout = DefaultRequestTimeout
		}
		if hook.Concurrency == 0 {
			hook.Concurrency = DefaultConcurrency
		}
		s.Webhook = &hook
	}
	return s
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate returns what is wrong with settings that have their defaults. The error names a field.
func (s Settings) Validate() error {
	switch {
	case !namePattern.MatchString(s.Name):
		return invalid("name", "%q is not 1 to 63 characters of a-z, 0-9 and -, with a letter or digit at both ends", s.Name)
	case !slices.Contains([]chain.Mode{chain.Enforced, chain.DryRun, chain.Disabled}, s.Mode):
		return invalid("mode", "%q is not enforced, dry_run or disabled", s.Mode)
	case s.FailurePolicy != chain.Deny && s.FailurePolicy != chain.Ignore:
		return invalid("failure_policy", "%q is not deny or ignore", s.FailurePolicy)
	case s.Timeout < time.Second || s.Timeout > MaxTimeout:
		return invalid("timeout", "%s is not between 1s and %s", s.Timeout, MaxTimeout)
	case s.MaxAttempts < 1 || s.MaxAttempts > MaxAttempts:
		return invalid("max_attempts", "%d is not between 1 and %d", s.MaxAttempts, MaxAttempts)
	case len(s.Variables) > payload.MaxVariables:
		return invalid("variables", "%d names: at most %d are allowed", len(s.Variables), payload.MaxVariables)
	case slices.ContainsFunc(s.Variables, func(name string) bool { return name == "" || len(name) > maxName }):
		return invalid("variables", "each name has 1 to %d characters", maxName)
	case (s.Webhook == nil) == (s.Policy == ""):
		return invalid("webhook", "give either webhook or policy")
	}
	if s.Match != "" {
		if _, err := policy.CompileCondition(s.Match); err != nil {
			return invalid("match", "%v", err)
		}
	}
	if s.Webhook != nil {
		return s.Webhook.validate()
	}
	if _, err := policy.Parse("policy", []byte(s.Policy)); err != nil {
		return invalid("policy", "%v", err)
	}
	return nil
}

func (w Webhook) validate() error {
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || len(w.URL) > maxURL:
		return invalid("webhook.url", "is not a URL with https:// or http:// and at most %d characters", maxURL)
	case u.User != nil:
		return invalid("webhook.url", "has a user name: requests are signed, remove it")
	case w.RequestTimeout < time.Second || w.RequestTimeout > MaxRequestTimeout:
		return invalid("webhook.request_timeout", "%s is not between 1s and %s", w.RequestTimeout, MaxRequestTimeout)
	case w.Concurrency < 1 || w.Concurrency > MaxConcurrency:
		return invalid("webhook.concurrency", "%d is not between 1 and %d", w.Concurrency, MaxConcurrency)
	case !(w.Rate >= 0 && w.Rate <= maxRate):
		return invalid("webhook.rate", "%v is not between 0 and %d", w.Rate, maxRate)
	case len(w.CA) > maxCA:
		return invalid("webhook.ca", "has more than %d bytes", maxCA)
	case w.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(w.CA)):
		return invalid("webhook.ca", "has no certificate in PEM")
	}
	return nil
}

// NewSecret returns a random signing secret.
func NewSecret() string {
	raw := make([]byte, newSecret)
	if _, err := rand.Read(raw); err != nil { // it never fails
		panic(err)
	}
	return secretPrefix + base64.StdEncoding.EncodeToString(raw)
}

// ValidateSecret checks a signing secret.
func ValidateSecret(secret string) error {
	encoded, found := strings.CutPrefix(secret, secretPrefix)
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if !found || err != nil || len(raw) < minSecret || len(raw) > maxSecret {
		return invalid("secret", "is not whsec_ and base64 of %d to %d bytes", minSecret, maxSecret)
	}
	return nil
}

// ValidateOverlap checks how long the secret before a rotation signs requests.
func ValidateOverlap(overlap time.Duration) error {
	if overlap < 0 || overlap > MaxOverlap {
		return invalid("overlap", "%s is not between 0s and %s", overlap, MaxOverlap)
	}
	return nil
}

func invalid(field, format string, arguments ...any) error {
	return fault.New(errcode.InvalidArgument, "%s: %s", field, fmt.Sprintf(format, arguments...)).With("field", field)
}
