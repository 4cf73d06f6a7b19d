package deploys

import (
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
)

// Config of the deploys service.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry    telemetry.Config   `yaml:"telemetry"`
	API          service.Listener   `yaml:"api" help:"the user API: Connect, gRPC and JSON over HTTP"`
	Access       AccessConfig       `yaml:"access"`
	Cell         CellConfig         `yaml:"cell"`
	Database     postgres.Settings  `yaml:"database"`
	NATS         natsconn.Config    `yaml:"nats"`
	Ingest       IngestConfig       `yaml:"ingest"`
	Environments EnvironmentsConfig `yaml:"environments"`
	SinksFile    string             `yaml:"sinks_file" help:"YAML file with the sinks; empty for none"`
}

// CellConfig names the cell.
type CellConfig struct {
	Name string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
}

// AccessConfig bounds what callers of the API may have.
type AccessConfig struct {
	StreamLifetime time.Duration `yaml:"stream_lifetime" help:"a stream of the API, such as a watch, ends after this time; at most 24h"`
}

// IngestConfig sizes the reader.
type IngestConfig struct {
	CachedWorkloads int `yaml:"cached_workloads" help:"workloads kept in memory, about 4 KiB each"`
}

// EnvironmentsConfig groups workloads into environments.
type EnvironmentsConfig struct {
	Label  string        `yaml:"label" help:"label or annotation that names the environment of a workload"`
	Settle time.Duration `yaml:"settle" help:"an environment of unknown size is complete after this time without changes"`
}

// DefaultConfig returns the configuration for one machine. The database and the NATS key have no default.
func DefaultConfig() Config {
	return Config{
		Config:       service.DefaultConfig("127.0.0.1:8085"),
		Telemetry:    telemetry.DefaultConfig(),
		API:          service.DefaultListener("127.0.0.1:8084"),
		Access:       AccessConfig{StreamLifetime: access.DefaultStreamLifetime},
		Cell:         CellConfig{Name: "local"},
		NATS:         natsconn.DefaultConfig(),
		Ingest:       IngestConfig{CachedWorkloads: 50_000},
		Environments: EnvironmentsConfig{Label: "lockstep.dev/deploy-group", Settle: 30 * time.Second},
	}
}

// Validate returns all errors of the configuration. The embedded configurations validate themselves.
func (c Config) Validate() []error {
	var errs []error
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		errs = append(errs, config.Invalid("cell.name", "%v", err))
	}
	if err := access.ValidateStreamLifetime(c.Access.StreamLifetime); err != nil {
		errs = append(errs, config.Invalid("access.stream_lifetime", "%v", err))
	}
	if c.Ingest.CachedWorkloads < 1 {
		errs = append(errs, config.Invalid("ingest.cached_workloads", "%d is not positive", c.Ingest.CachedWorkloads))
	}
	if c.Environments.Label == "" {
		errs = append(errs, config.Invalid("environments.label", "is empty"))
	}
	if c.Environments.Settle <= 0 {
		errs = append(errs, config.Invalid("environments.settle", "%s is not positive", c.Environments.Settle))
	}
	return errs
}
