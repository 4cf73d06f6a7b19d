package runners

import (
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
)

// Config of the runners service.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config  `yaml:"telemetry"`
	API       service.Listener  `yaml:"api" help:"the API of GitLab runners"`
	Cell      CellConfig        `yaml:"cell"`
	Database  postgres.Settings `yaml:"database"`
	NATS      natsconn.Config   `yaml:"nats"`
}

// CellConfig names the cell.
type CellConfig struct {
	Name string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
}

// DefaultConfig returns the configuration for one machine. The database and the NATS key have no default.
func DefaultConfig() Config {
	return Config{
		Config:    service.DefaultConfig("127.0.0.1:8095"),
		Telemetry: telemetry.DefaultConfig(),
		API:       service.DefaultListener("127.0.0.1:8094"),
		Cell:      CellConfig{Name: "local"},
		NATS:      natsconn.DefaultConfig(),
	}
}

// Validate returns all errors of the configuration. The embedded configurations validate themselves.
func (c Config) Validate() []error {
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		return []error{config.Invalid("cell.name", "%v", err)}
	}
	return nil
}
