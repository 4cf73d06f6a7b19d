package admission

import (
	"fmt"
	"net/url"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
)

// Config of the admission service.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry   telemetry.Config  `yaml:"telemetry"`
	API         service.Listener  `yaml:"api" help:"the API of people and of controllers: HTTP, Connect, gRPC"`
	Access      AccessConfig      `yaml:"access"`
	Cell        CellConfig        `yaml:"cell"`
	Database    postgres.Settings `yaml:"database"`
	NATS        natsconn.Config   `yaml:"nats"`
	Secrets     SecretsConfig     `yaml:"secrets"`
	Controllers ControllersConfig `yaml:"controllers"`
	Decisions   DecisionsConfig   `yaml:"decisions"`
}

// AccessConfig bounds what callers of the API may have.
type AccessConfig struct {
	StreamLifetime time.Duration `yaml:"stream_lifetime" help:"a stream of the API ends after this time; at most 24h"`
}

// CellConfig identifies the cell.
type CellConfig struct {
	Name      string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
	PublicURL string `yaml:"public_url" help:"address of this service for controllers, such as https://admission.example; empty: they cannot answer later, and cannot read about jobs"`
}

// SecretsConfig locates the key that seals the signing secrets of controllers.
type SecretsConfig struct {
	KeyFile config.Secret `yaml:"key_file" help:"file with the X25519 seed (nkeys) that seals the signing secrets of controllers in the database; all replicas need the same one, and a backup of the database is of no use without it"`
}

// Open reads the key. An error names the setting.
func (c SecretsConfig) Open() (seal.Key, error) {
	seed, err := c.KeyFile.Read()
	if err != nil {
		return seal.Key{}, fmt.Errorf("secrets.key_file: %w", err)
	}
	key, err := seal.ParseKey(seed)
	if err != nil {
		return seal.Key{}, fmt.Errorf("secrets.key_file: %w", err)
	}
	return key, nil
}

// ControllersConfig is about requests to controllers.
type ControllersConfig struct {
	egress.Config `yaml:",inline"`
}

// DecisionsConfig is about what is kept of decisions.
type DecisionsConfig struct {
	Keep time.Duration `yaml:"keep" help:"time that decisions are kept in the database for the API; the stream ADMISSION keeps them longer"`
}

const defaultKeep = 30 * 24 * time.Hour

// DefaultConfig returns the configuration for one machine. The database and the key have no default.
func DefaultConfig() Config {
	return Config{
		Config:    service.DefaultConfig("127.0.0.1:8099"),
		Telemetry: telemetry.DefaultConfig(),
		API:       service.DefaultListener("127.0.0.1:8098"),
		Access:    AccessConfig{StreamLifetime: access.DefaultStreamLifetime},
		Cell:      CellConfig{Name: "local"},
		NATS:      natsconn.DefaultConfig(),
		Decisions: DecisionsConfig{Keep: defaultKeep},
	}
}

// minKeep is longer than the longest wait of a job.
const minKeep = 25 * time.Hour

// Validate returns all errors of the configuration. The embedded configurations validate themselves.
func (c Config) Validate() []error {
	var errs []error
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		errs = append(errs, config.Invalid("cell.name", "%v", err))
	}
	if c.Cell.PublicURL != "" {
		u, err := url.Parse(c.Cell.PublicURL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, config.Invalid("cell.public_url", "%q is not a URL such as https://admission.example",
				c.Cell.PublicURL))
		}
	}
	if err := access.ValidateStreamLifetime(c.Access.StreamLifetime); err != nil {
		errs = append(errs, config.Invalid("access.stream_lifetime", "%v", err))
	}
	if !c.Secrets.KeyFile.IsSet() {
		errs = append(errs, config.Invalid("secrets.key_file", "is missing: run lockstep admission init"))
	}
	if c.Decisions.Keep < minKeep {
		errs = append(errs, config.Invalid("decisions.keep", "%s is less than %s: jobs may wait for that long",
			c.Decisions.Keep, minKeep))
	}
	return errs
}
